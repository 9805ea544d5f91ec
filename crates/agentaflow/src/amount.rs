//! Parsers of option values: `90s`, `8G`, `2.5`, `KEY=VALUE`. Each error shows a valid example.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use agentaflow_api::job::Volume;
use agentaflow_api::{Cores, Dollars, GpuAmount, Stamp};
use agentaflow_units::{parse_duration, parse_mib};
use ipnet::IpNet;

/// Parses a duration: `300ms`, `90s`, `5m`, `1h30m`, `2d`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Parses a time in the past: an age, a day, or a timestamp.
pub(crate) fn since(text: &str) -> Result<Stamp, String> {
    let time = |text: String| serde_json::from_value::<Stamp>(text.into());
    if let Ok(at) = time(text.to_owned()).or_else(|_| time(format!("{text}T00:00:00Z"))) {
        return Ok(at);
    }
    // A bare number would mean seconds, but is probably a year.
    match duration(text).ok().filter(|_| text.ends_with(|c: char| c.is_ascii_alphabetic())) {
        Some(ago) => {
            let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
            Ok(Stamp(Stamp::now().0.saturating_sub(ago)))
        }
        None => {
            Err("use an age such as 24h or 7d, a day such as 2026-11-15, or a timestamp such as \
                     2026-11-15T06:43:29Z"
                .to_owned())
        }
    }
}

/// Parses a duration above zero.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses memory in MiB: `512`, `512M`, `8G`, `1.5GiB`, `2T`.
pub(crate) fn mib(text: &str) -> Result<u64, String> {
    parse_mib(text).map_err(|error| error.to_string())
}

/// A limit that `none` switches off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<T>(pub(crate) Option<T>);

/// Parses an age, or `none`.
pub(crate) fn age_limit(text: &str) -> Result<Limit<Duration>, String> {
    limit(text, positive_duration)
}

/// Parses a size, or `none`, as bytes.
pub(crate) fn size_limit(text: &str) -> Result<Limit<u64>, String> {
    limit(text, |text| mib(text).map(|mib| mib << 20))
}

fn limit<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    parse(text).map(|value| Limit(Some(value))).map_err(|error| format!("{error}, or none"))
}

/// Parses a number of CPU cores: `4`, `0.5`.
pub(crate) fn cores(text: &str) -> Result<Cores, String> {
    thousandths(text, "cores").map(Cores)
}

/// Parses the GPUs of a quota: `4`, `0.5`.
pub(crate) fn quota(text: &str) -> Result<GpuAmount, String> {
    thousandths(text, "GPUs").map(GpuAmount)
}

fn thousandths(text: &str, unit: &str) -> Result<u64, String> {
    let number: f64 =
        text.parse().map_err(|_| format!("use a number of {unit}, such as 4 or 0.5"))?;
    if !(0.0..=1e6).contains(&number) {
        return Err("must be between 0 and 1000000".to_owned());
    }
    Ok((number * 1000.0).round() as u64)
}

/// Parses an amount of money: `2.5` or `$2.50`.
pub(crate) fn dollars(text: &str) -> Result<Dollars, String> {
    let number: f64 = text
        .trim_start_matches('$')
        .parse()
        .map_err(|_| "use a number of dollars, such as 2.50")?;
    if !(0.0..=1e6).contains(&number) {
        return Err("must be between 0 and 1000000 dollars".to_owned());
    }
    Ok(Dollars((number * 1e6).round() as i64))
}

/// Parses `KEY=VALUE`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use the form KEY=VALUE".to_owned()),
    }
}

/// Parses a host path and its mount path in the container: `/data:/data`, `/data:/data:ro`.
pub(crate) fn volume(text: &str) -> Result<Volume, String> {
    let (folders, read_only) = match text.strip_suffix(":ro") {
        Some(folders) => (folders, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    match folders.split_once(':') {
        Some((source, target)) if source.starts_with('/') && target.starts_with('/') => {
            Ok(Volume { source: source.to_owned(), target: target.to_owned(), read_only })
        }
        _ => Err("use the form /host/path:/container/path[:ro]".to_owned()),
    }
}

/// A network such as `10.0.0.0/8`, or one address.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let one = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
    one.or_else(|_| text.parse::<IpNet>())
        .map_err(|_| "use an address or a network, such as 10.0.0.5 or 10.0.0.0/8".to_owned())
}

/// Parses a listen address.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong =
        "use an address and a port, such as 127.0.0.1:8000, or 0.0.0.0:8000 for all interfaces";
    text.parse().map_err(|_| wrong.to_owned())
}

pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "use a whole number, such as 2".to_owned())
}

/// Parses a whole number of at least 1.
pub(crate) fn positive<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, String> {
    let number = whole(text)?;
    if number == T::default() {
        Err("use a whole number of at least 1".to_owned())
    } else {
        Ok(number)
    }
}

/// Parses a number of whole GPUs; the error for a fraction names `--fraction`.
pub(crate) fn gpus(text: &str) -> Result<u32, String> {
    let part = || text.parse().is_ok_and(|number: f64| number > 0.0 && number < 1.0);
    whole(text).map_err(|wrong| {
        if part() {
            format!("{wrong}; for a fraction of one GPU use --fraction {text}")
        } else {
            wrong
        }
    })
}

/// Parses a fraction of a GPU: `0.5`.
pub(crate) fn fraction(text: &str) -> Result<f64, String> {
    let fraction = text.parse().ok().filter(|fraction| (0.001..1.0).contains(fraction));
    fraction.ok_or_else(|| {
        "use a fraction of one GPU from 0.001 to 0.999, such as 0.5; for whole GPUs use `gpus`"
            .to_owned()
    })
}

pub(crate) fn priority<T: From<u8>>(text: &str) -> Result<T, String> {
    let number = text.parse::<u8>().ok().filter(|number| *number <= 10);
    number.map(T::from).ok_or_else(|| "use a whole number from 0 to 10".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_units_or_is_seconds() {
        let written = ["90", "90s", "1m30s", "0.025h", "90000ms"];
        assert!(written.iter().all(|text| duration(text) == Ok(Duration::from_secs(90))));
        for wrong in ["", "h", "5x", "-1", "1h-5m", "1e400", "nan"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(positive_duration("0s").is_err());
        assert_eq!(age_limit("2d"), Ok(Limit(Some(Duration::from_hours(48)))));
        assert_eq!(size_limit("none"), Ok(Limit(None)));
        assert_eq!(size_limit("1GiB"), Ok(Limit(Some(1 << 30))));
    }

    #[test]
    fn memory_is_mib_or_has_a_unit() {
        assert_eq!(["512", "512M", "0.5G", "0.5GiB"].map(mib), [const { Ok(512) }; 4]);
        for wrong in ["", "G", "5x", "-1", "1e3G"] {
            assert!(mib(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fraction_is_between_zero_and_one() {
        assert_eq!(fraction("0.25"), Ok(0.25));
        for wrong in ["", "x", "nan", "inf", "0", "1", "-0.5", "0.0001"] {
            assert!(fraction(wrong).is_err(), "{wrong}");
        }
        assert_eq!(gpus("2"), Ok(2));
        assert!(gpus("0.5").unwrap_err().contains("--fraction 0.5"));
        assert!(!gpus("1.5").unwrap_err().contains("--fraction"));
    }

    #[test]
    fn a_priority_is_between_zero_and_ten() {
        assert_eq!((priority("0"), priority("10")), (Ok(0_u32), Ok(10_i32)));
        assert!(["11", "-1", "high", ""].iter().all(|wrong| priority::<i32>(wrong).is_err()));
        assert!(positive::<u64>("0").is_err() && positive::<u64>("3") == Ok(3));
    }

    #[test]
    fn a_pair_has_a_key() {
        assert_eq!(pair("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert!(pair("=b").is_err() && pair("A").is_err());
    }

    #[test]
    fn a_volume_has_two_absolute_paths() {
        let volume = |text: &str| {
            volume(text).map(|volume| (volume.source, volume.target, volume.read_only)).ok()
        };
        let is =
            |source: &str, target: &str, read_only| Some((source.into(), target.into(), read_only));
        assert_eq!(volume("/data:/in"), is("/data", "/in", false));
        assert_eq!(volume("/data:/in:ro"), is("/data", "/in", true));
        assert_eq!(volume("/data:/in:rw"), is("/data", "/in", false));
        for wrong in ["", "/data", "data:/in", "/data:in", ":", "/data:"] {
            assert_eq!(volume(wrong), None, "{wrong}");
        }
    }
}
