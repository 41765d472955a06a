extern crate std;

use super::*;
use proptest::prelude::*;
use std::format;
use std::string::ToString;

fn bytes(text: &str) -> Result<u64, Fault> {
    text.parse::<Size>().map(|s| s.bytes).map_err(|e| e.fault)
}

#[test]
fn sizes_as_people_write_them() {
    for (text, want) in [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("4GiB", 4 << 30),
        ("4Gi", 4 << 30),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("0.5K", 512),
        ("1.50K", 1536),
        ("007K", 7 << 10),
        ("2T", 2 << 40),
        ("18446744073709551615", u64::MAX),
        ("0.3K", 307),
    ] {
        assert_eq!(bytes(text), Ok(want), "{text}");
    }
}

#[test]
fn sizes_that_are_refused() {
    for (text, want) in [
        ("", Fault::Empty),
        ("G", Fault::NoNumber),
        ("+4G", Fault::NoNumber),
        ("-4G", Fault::Negative),
        ("4 G", Fault::Space),
        (" 4G", Fault::Space),
        ("4X", Fault::UnknownUnit),
        ("4GG", Fault::UnknownUnit),
        ("4é", Fault::UnknownUnit),
        ("0x10", Fault::UnknownUnit),
        ("25%", Fault::UnknownUnit),
        ("4GB", Fault::AmbiguousUnit),
        ("4kb", Fault::AmbiguousUnit),
        (".5G", Fault::BadFraction),
        ("5.G", Fault::BadFraction),
        ("1.2.3G", Fault::BadFraction),
        ("1.5", Fault::TooFine),
        ("0.0001K", Fault::TooFine),
        ("18446744073709551616", Fault::TooLarge),
        ("16777216T", Fault::TooLarge),
        (
            "99999999999999999999999999999999999999999999999999G",
            Fault::TooLarge,
        ),
    ] {
        assert_eq!(bytes(text), Err(want), "{text}");
    }
}

#[test]
fn shares() {
    let ppm = |t: &str| t.parse::<Share>().map(Share::ppm).map_err(|e| e.fault);
    for (text, want) in [
        ("25%", 250_000),
        ("100%", 1_000_000),
        ("0.5%", 5_000),
        ("12.5%", 125_000),
        ("0.0001%", 1),
    ] {
        assert_eq!(ppm(text), Ok(want), "{text}");
    }
    for (text, want) in [
        ("", Fault::Empty),
        ("%", Fault::NoNumber),
        ("25", Fault::NoUnit),
        ("25G", Fault::UnknownUnit),
        ("0%", Fault::ZeroShare),
        ("0.00001%", Fault::TooFine),
        ("100.1%", Fault::ShareOverWhole),
        ("-5%", Fault::Negative),
    ] {
        assert_eq!(ppm(text), Err(want), "{text}");
    }
}

#[test]
fn spans() {
    let ns = |t: &str| t.parse::<Span>().map(|s| s.ns).map_err(|e| e.fault);
    for (text, want) in [
        ("10ms", 10_000_000),
        ("1.5s", 1_500_000_000),
        ("250us", 250_000),
        ("250µs", 250_000),
        ("7ns", 7),
        ("2m", 120_000_000_000),
        ("2min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("0", 0),
    ] {
        assert_eq!(ns(text), Ok(want), "{text}");
    }
    for (text, want) in [
        ("10", Fault::NoUnit),
        ("10M", Fault::UnknownUnit),
        ("0.5ns", Fault::TooFine),
        ("99999999999h", Fault::TooLarge),
    ] {
        assert_eq!(ns(text), Err(want), "{text}");
    }
}

#[test]
fn an_amount_is_a_size_or_a_share() {
    assert_eq!("25%".parse(), Ok(Amount::Share(Share { ppm: 250_000 })));
    assert_eq!("4G".parse(), Ok(Amount::Size(Size { bytes: 4 << 30 })));
    assert_eq!("x%".parse::<Amount>().unwrap_err().fault, Fault::NoNumber);
}

#[test]
fn rates_as_people_write_them() {
    let read = |text: &str| text.parse::<RateLimit>().map_err(|e| e.fault);
    for (text, want) in [
        ("none", None),
        ("200M/s", Some(200 << 20)),
        ("1.5GiB/s", Some(3 << 29)),
        ("65536/s", Some(1 << 16)),
    ] {
        assert_eq!(read(text), Ok(RateLimit { bytes_per_s: want }), "{text}");
    }
    for (text, want) in [
        ("", Fault::Empty),
        ("/s", Fault::Empty),
        ("200M", Fault::NoSecond),
        ("0/s", Fault::ZeroRate),
        ("0", Fault::NoSecond),
        ("None", Fault::NoNumber),
        ("200MB/s", Fault::AmbiguousUnit),
        ("200M/S", Fault::UnknownUnit),
        ("10%/s", Fault::UnknownUnit),
        ("-1/s", Fault::Negative),
    ] {
        assert_eq!(read(text), Err(want), "{text}");
    }
    let sentence = "200M".parse::<RateLimit>().unwrap_err().to_string();
    assert_eq!(
        sentence,
        "it does not end in /s; write a rate such as 200M/s or 1.5GiB/s, or none"
    );
}

#[test]
fn errors_are_one_sentence_with_advice() {
    assert_eq!(
        "4X".parse::<Size>().unwrap_err().to_string(),
        "its unit is unknown; write a size such as 4G, 512M, 1.5GiB or a number of bytes"
    );
    for text in ["", "x", "-1", "1 G", "1.", "1X", "1GB", "0.1", "0%", "101%"] {
        let sentence = text.parse::<Amount>().unwrap_err().to_string();
        assert!(sentence.contains("; write "), "{text:?}: {sentence}");
        assert!(
            !sentence.contains('\n') && !sentence.ends_with('.'),
            "{text:?}: {sentence}"
        );
    }
}

proptest! {
    #[test]
    fn size_round_trip(bytes in any::<u64>(), shift in 0u32..64) {
        let size = Size { bytes: bytes >> shift << (shift / 2) };
        prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
    }

    #[test]
    fn rate_round_trip(bytes in prop::option::of(1u64..)) {
        let rate = RateLimit { bytes_per_s: bytes };
        prop_assert_eq!(rate.to_string().parse::<RateLimit>(), Ok(rate));
    }

    #[test]
    fn share_round_trip(ppm in 1u32..=1_000_000) {
        let share = Share { ppm };
        prop_assert_eq!(share.to_string().parse::<Share>(), Ok(share));
    }

    #[test]
    fn span_round_trip(ns in any::<u64>(), unit in prop::sample::select(&[1u64, 1_000, 1_000_000, 1_000_000_000][..])) {
        let span = Span { ns: ns / unit * unit };
        prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
    }

    /// The oracle: thousandths of a unit in plain 128-bit arithmetic.
    #[test]
    fn fractions_round_down(whole in 0u64..1 << 20, thousandths in 0u64..1000, shift in prop::sample::select(&[10u32, 20, 30][..])) {
        let unit = ["K", "M", "G"][shift as usize / 10 - 1];
        let text = format!("{whole}.{thousandths:03}{unit}");
        let want = (u128::from(whole) * 1000 + u128::from(thousandths)) * (1u128 << shift) / 1000;
        prop_assert_eq!(text.parse::<Size>().map(|s| u128::from(s.bytes)), Ok(want));
    }

    /// Any text gives a value or a one-sentence error, never a panic.
    #[test]
    fn any_text_is_answered(text in "[0-9.%KkMGTiBbnsuµmh \\-+x]{0,30}|.{0,12}") {
        for error in [
            text.parse::<Size>().err(),
            text.parse::<Share>().err(),
            text.parse::<Span>().err(),
            text.parse::<Amount>().err(),
            text.parse::<RateLimit>().err(),
        ].into_iter().flatten() {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}
