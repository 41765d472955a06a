//! Formats of numbers for people.

/// Three significant digits: 0.123, 1.23, 12.3, 123, 1230.
pub fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let size = value.abs();
    if size == 0.0 {
        "0".into()
    } else if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 {
        format!("{value:.2}")
    } else if size >= 0.0005 {
        format!("{value:.3}")
    } else {
        format!("{value:.1e}")
    }
}

/// A count or a rate: 950, 12.3 k, 4.56 M.
pub fn quantity(value: f64) -> String {
    for (size, unit) in [(1e9, " G"), (1e6, " M"), (1e3, " k")] {
        // A value that would round to 1000 gets the next unit.
        if value.abs() >= size * 0.9995 {
            return digits(value / size) + unit;
        }
    }
    if value.fract() == 0.0 && value.is_finite() {
        return format!("{value:.0}");
    }
    digits(value)
}

/// A time given in seconds: 1.2 ms, 3.45 s, 2.1 min.
pub fn seconds(value: f64) -> String {
    if value >= 600.0 {
        digits(value / 60.0) + " min"
    } else if value >= 0.9995 {
        digits(value) + " s"
    } else {
        nanoseconds(value * 1e9)
    }
}

/// A time given in nanoseconds: 850 ns, 4.2 µs, 13 ms, 2 s.
pub fn nanoseconds(value: f64) -> String {
    for (size, unit) in [(1e9, " s"), (1e6, " ms"), (1e3, " µs")] {
        if value.abs() >= size * 0.9995 {
            return digits(value / size) + unit;
        }
    }
    digits(value) + " ns"
}

/// Bytes in powers of 1024: 640 KiB, 1.5 GiB.
pub fn bytes(value: f64) -> String {
    for (power, unit) in [(40, " TiB"), (30, " GiB"), (20, " MiB"), (10, " KiB")] {
        let size = (1u64 << power) as f64;
        if value.abs() >= size * 0.9995 {
            return digits(value / size) + unit;
        }
    }
    digits(value) + " B"
}

/// A share given as 0 to 1: 12.3 %.
pub fn share(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// A factor: 1.23×.
pub fn times(value: f64) -> String {
    digits(value) + "×"
}

/// Removes trailing zeros of a fraction: 1.50× becomes 1.5×, 10.0 µs becomes 10 µs.
pub fn plain(text: &str) -> String {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if !number.contains('.') || unit.starts_with('e') {
        return text.to_owned();
    }
    number
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
        + unit
}

/// "1 run", "2 runs".
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, want) in [
            (0.0, "0"),
            (0.00001, "1.0e-5"),
            (0.12345, "0.123"),
            (0.9996, "1.00"),
            (9.996, "10.0"),
            (99.96, "100"),
            (1234.5, "1234"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(digits(value), want);
        }
        assert_eq!(quantity(999.7), "1.00 k");
        assert_eq!(quantity(950.0), "950");
        assert_eq!(quantity(23_898.79), "23.9 k");
        assert_eq!(seconds(0.0042), "4.20 ms");
        assert_eq!(seconds(90.0), "90.0 s");
        assert_eq!(seconds(5760.0), "96.0 min");
        assert_eq!(nanoseconds(999.9), "1.00 µs");
        assert_eq!(bytes(1.5 * 1_073_741_824.0), "1.50 GiB");
        assert_eq!(bytes(1_048_575.9), "1.00 MiB");
        assert_eq!(share(0.792), "79.2 %");
        for (long, short) in [
            ("1.50×", "1.5×"),
            ("10.0 µs", "10 µs"),
            ("100 MiB", "100 MiB"),
            ("0.500", "0.5"),
            ("1.0e-5", "1.0e-5"),
            ("–", "–"),
        ] {
            assert_eq!(plain(long), short);
        }
        assert_eq!(count(1, "run"), "1 run");
        assert_eq!(count(0, "run"), "0 runs");
    }
}
