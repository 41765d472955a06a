//! Colours and marks of the plots.
//!
//! Plots have the colours of the light page as plain attributes; the style sheet replaces each on a dark
//! page.

use std::fmt::Write;

use plotters::style::RGBColor;

use crate::variant::Variant;

/// Shape of a point, so that lines differ not only by colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
    Ring,
}

/// Style of a variant, everywhere on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Index in [`COLOURS`].
    pub colour: usize,
    pub mark: Mark,
    /// Whether the line is dashed, because the colours repeat.
    pub dashed: bool,
}

/// A colour on a light and on a dark page.
struct Colour {
    light: u32,
    dark: u32,
}

const fn colour(light: u32, dark: u32) -> Colour {
    Colour { light, dark }
}

const CANVAS: usize = 0;
const ZRAM: usize = 1;
const ZSWAP: usize = 2;
const DISK: usize = 3;
const LOCAL: usize = 4;
/// Index of the first colour for other lines (canvas with flags, parameters).
const OTHERS: usize = 5;

/// Distinguishable with the common kinds of colour blindness, neighbours first.
const COLOURS: [Colour; 9] = [
    colour(0x2a78d6, 0x3987e5),
    colour(0xeb6834, 0xd95926),
    colour(0x1baf7a, 0x199e70),
    colour(0x4a3aa7, 0x9085e9),
    colour(0x7d7c77, 0x9a9993),
    colour(0xeda100, 0xc98500),
    colour(0xe87ba4, 0xd55181),
    colour(0x008300, 0x3f9f3f),
    colour(0x8a5a2b, 0xbf8d5c),
];

const INK: Colour = colour(0x52514e, 0xc3c2b7);
const GRID: Colour = colour(0xe1e0d9, 0x34342f);
const AXIS: Colour = colour(0xb8b7af, 0x5c5b55);

const fn rgb(c: u32) -> RGBColor {
    RGBColor((c >> 16) as u8, (c >> 8) as u8, c as u8)
}

/// Colour of text in plots.
pub const fn ink() -> RGBColor {
    rgb(INK.light)
}

/// Colour of grid lines.
pub const fn grid() -> RGBColor {
    rgb(GRID.light)
}

/// Colour of axes and reference lines.
pub const fn axis() -> RGBColor {
    rgb(AXIS.light)
}

impl Style {
    /// The colour in plots.
    pub fn rgb(self) -> RGBColor {
        rgb(COLOURS[self.colour].light)
    }

    /// CSS class of the colour.
    pub fn class(self) -> String {
        format!("c{}", self.colour)
    }
}

/// Assigns styles, and remembers them.
#[derive(Default)]
pub struct Palette {
    others: Vec<String>,
}

impl Palette {
    /// Style of a variant, with its parameters if lines differ by them.
    pub fn style(&mut self, variant: &Variant, parameters: &str) -> Style {
        let known = match variant {
            Variant::Canvas(flags) if flags.is_empty() => Some((CANVAS, Mark::Circle)),
            Variant::LocalOnHalf
            | Variant::Canvas(_)
            | Variant::CanvasFar(_)
            | Variant::Zram64k
            | Variant::SlowDisk
            | Variant::Tmo(_) => None,
            Variant::Zram => Some((ZRAM, Mark::Square)),
            Variant::Zswap => Some((ZSWAP, Mark::Triangle)),
            Variant::Disk => Some((DISK, Mark::Diamond)),
            Variant::Local => Some((LOCAL, Mark::Ring)),
        };
        if let (Some((colour, mark)), true) = (known, parameters.is_empty()) {
            return Style {
                colour,
                mark,
                dashed: false,
            };
        }
        let name = format!("{variant} {parameters}");
        let at = self
            .others
            .iter()
            .position(|o| *o == name)
            .unwrap_or_else(|| {
                self.others.push(name);
                self.others.len() - 1
            });
        let colours = COLOURS.len() - OTHERS;
        let marks = [
            Mark::Circle,
            Mark::Square,
            Mark::Triangle,
            Mark::Diamond,
            Mark::Ring,
        ];
        Style {
            colour: OTHERS + at % colours,
            mark: marks[at % marks.len()],
            dashed: at >= colours,
        }
    }
}

/// Style sheet: a class per colour, and the replacement of each colour on a dark page.
pub fn css() -> String {
    let mut light = String::new();
    let mut dark = String::new();
    for (n, c) in COLOURS.iter().enumerate() {
        let _ = write!(light, ".c{n}{{color:#{:06x}}}", c.light);
        let _ = write!(dark, ".c{n}{{color:#{:06x}}}", c.dark);
    }
    for c in COLOURS.iter().chain([&INK, &GRID, &AXIS]) {
        let _ = write!(
            dark,
            "svg [stroke=\"#{0:06X}\"]{{stroke:#{1:06x}}}svg [fill=\"#{0:06X}\"]{{fill:#{1:06x}}}",
            c.light, c.dark
        );
    }
    format!("{light}@media (prefers-color-scheme:dark){{{dark}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn styles_stay_and_differ() {
        let mut palette = Palette::default();
        let variants = [
            Variant::Canvas(vec![]),
            Variant::Canvas(vec!["-o".into(), "prefetch=none".into()]),
            Variant::Zram,
            Variant::Zram64k,
            Variant::Zswap,
            Variant::Disk,
            Variant::Local,
        ];
        let styles: Vec<Style> = variants.iter().map(|v| palette.style(v, "")).collect();
        let again: Vec<Style> = variants.iter().map(|v| palette.style(v, "")).collect();
        assert_eq!(styles, again);
        let colours: BTreeSet<usize> = styles.iter().map(|s| s.colour).collect();
        assert_eq!(colours.len(), variants.len());
        for n in 0..20 {
            palette.style(&Variant::Zram, &format!("threads={n}"));
        }
        assert!(palette.style(&Variant::Zram, "threads=19").dashed);
        assert_eq!(palette.style(&Variant::Zram, ""), styles[2]);
    }

    #[test]
    fn every_colour_of_a_plot_has_its_dark_rule() {
        let css = css();
        for c in COLOURS.iter().chain([&INK, &GRID, &AXIS]) {
            assert!(css.contains(&format!("stroke=\"#{:06X}\"", c.light)));
        }
    }
}
