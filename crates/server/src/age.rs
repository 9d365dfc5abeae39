//! How long something took or takes, for people to read.

/// Two units at most: `850 ms`, `12 s`, `3 m 20 s`, `2 h 5 m`, `4 d 1 h`.
pub(crate) fn age(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds.max(0.0) * 1000.0);
    }
    // A float beyond the range of u64 is an age nobody has.
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, minutes) => format!("{minutes} m {} s", whole % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} m"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        for (seconds, wanted) in
            [(0.85, "850 ms"), (12.7, "12 s"), (7500.0, "2 h 5 m"), (349_300.0, "4 d 1 h"), (-0.1, "0 ms")]
        {
            assert_eq!(age(seconds), wanted);
        }
    }
}
