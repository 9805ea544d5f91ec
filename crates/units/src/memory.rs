//! Memory sizes in flags, files and tables. All sizes are binary: `8G` and `8GiB` are both 8192 MiB.

use thiserror::Error;

/// Largest size accepted from a user, in MiB. A larger one is a typing error.
const MAX_MIB: f64 = 1e12;

const GIB: u64 = 1024;
const TIB: u64 = 1024 * GIB;

/// Text that is not a memory size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a memory size: use a form such as 512M or 8G")]
pub struct MemoryError(String);

/// MiB of `512`, `512M`, `8G`, `1.5GiB` or `2T`, rounded to the nearest. A bare number is in MiB; case is ignored.
pub fn parse_mib(text: &str) -> Result<u64, MemoryError> {
    let error = || MemoryError(crate::excerpt(text));
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| error())?;
    let unit = unit.trim().to_ascii_lowercase();
    let factor = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" | "m" => 1,
        "g" => GIB,
        "t" => TIB,
        _ => return Err(error()),
    };
    let mib = (number * factor as f64).round();
    if mib > MAX_MIB { Err(error()) } else { Ok(mib as u64) }
}

/// Size for tables and messages, to one decimal: `512 MiB`, `1.5 GiB`, `1 TiB`.
pub fn format_mib(mib: u64) -> String {
    let short = |amount: f64, unit: &str| {
        let text = format!("{amount:.1}");
        format!("{} {unit}", text.trim_end_matches(".0"))
    };
    match mib {
        0..GIB => format!("{mib} MiB"),
        GIB..TIB => short(mib as f64 / GIB as f64, "GiB"),
        _ => short(mib as f64 / TIB as f64, "TiB"),
    }
}

/// Kubernetes quantity: whole `Gi` where possible, else `Mi`.
pub fn quantity_of_mib(mib: u64) -> String {
    if mib > 0 && mib.is_multiple_of(GIB) { format!("{}Gi", mib / GIB) } else { format!("{mib}Mi") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Amount;
    use proptest::prelude::*;

    #[test]
    fn a_size_is_a_number_of_mib_or_has_a_unit() {
        assert_eq!(
            ["512", "512M", "0.5G", "0.5GiB", "0.5 gib"].map(parse_mib),
            [const { Ok(512) }; 5]
        );
        assert_eq!(parse_mib("2T"), Ok(2 * TIB));
        for wrong in ["", "G", "5x", "-1", "1e3G", "1..5G", "9999999999999"] {
            assert!(parse_mib(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_formatted_to_one_decimal() {
        assert_eq!(
            [512, 8192, 1536, 3 * TIB].map(format_mib),
            ["512 MiB", "8 GiB", "1.5 GiB", "3 TiB"]
        );
        assert_eq!([0, 1500, 2048].map(quantity_of_mib), ["0Mi", "1500Mi", "2Gi"]);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[-+]?[0-9]{0,45}[.]?[0-9]{0,5} ?(\\PC{0,4}|[mgtMGTiB]{0,3})") {
            let _ = parse_mib(&text);
        }

        #[test]
        fn quantities_of_mib_round_trip(mib in 0_u64..1 << 39) {
            let text = quantity_of_mib(mib);
            prop_assert_eq!(Amount::parse(&text).unwrap().floor_mib(), mib);
            prop_assert_eq!(parse_mib(&text), Ok(mib));
        }
    }
}
