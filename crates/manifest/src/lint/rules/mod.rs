//! Rules, grouped by the first digit of their ids: 0 GPUs, 1 placement, 2 job lifecycle, 3 images and security, 4
//! memory, 5 model servers, 6 scaling, 7 fields and values.

use super::Rule;

/// One rule; its examples are the files with its id.
macro_rules! rule {
    (
        $id:literal $name:literal $severity:ident $(fixable $fixable:literal)?;
        title: $title:literal,
        why: $why:literal,
        advice: $advice:literal,
        check: $check:path $(,)?
    ) => {
        crate::lint::Rule {
            id: $id,
            name: $name,
            severity: crate::lint::Severity::$severity,
            title: $title,
            why: $why,
            advice: $advice,
            fixable: false $(|| $fixable)?,
            bad: include_str!(concat!("../examples/", $id, "-bad.yaml")),
            good: include_str!(concat!("../examples/", $id, "-good.yaml")),
            check: $check,
        }
    };
}

mod fields;
mod gpus;
mod images;
mod jobs;
mod launch;
mod memory;
mod mig;
mod placement;
mod scaling;
mod selectors;
mod servers;
mod sharing;
mod spot;
mod values;

/// All rules, in the order of their ids.
pub static RULES: &[&Rule] = &[
    &gpus::AF001,
    &gpus::AF002,
    &gpus::AF003,
    &sharing::AF004,
    &sharing::AF005,
    &sharing::AF006,
    &gpus::AF007,
    &gpus::AF008,
    &mig::AF009,
    &gpus::AF010,
    &launch::AF011,
    &placement::AF101,
    &placement::AF102,
    &selectors::AF103,
    &selectors::AF104,
    &selectors::AF105,
    &selectors::AF106,
    &placement::AF107,
    &placement::AF108,
    &placement::AF109,
    &spot::AF110,
    &spot::AF111,
    &jobs::AF201,
    &jobs::AF202,
    &jobs::AF203,
    &jobs::AF204,
    &jobs::AF205,
    &jobs::AF206,
    &images::AF301,
    &images::AF302,
    &images::AF303,
    &images::AF304,
    &images::AF305,
    &memory::AF401,
    &memory::AF402,
    &servers::AF501,
    &servers::AF502,
    &servers::AF503,
    &servers::AF504,
    &scaling::AF601,
    &scaling::AF602,
    &fields::AF701,
    &fields::AF702,
    &fields::AF703,
    &fields::AF704,
];
