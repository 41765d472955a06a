//! Plots as SVG, drawn at twice their size on the page because coordinates are integers.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::element::{DashedPathElement, PathElement};
use plotters::prelude::*;

use crate::words::plain;

use super::palette::{Mark, Style, axis, grid, ink};

const WIDTH: u32 = 1120;
const HEIGHT: u32 = 600;
/// Plotters writes font sizes divided by 1.24.
const TEXT: f64 = 25.0 * 1.24;
const SMALL: f64 = 22.0 * 1.24;

/// One line, or one colour of bars.
pub struct Series {
    pub name: String,
    pub style: Style,
    /// Points in any order; plots over x sort them.
    pub points: Vec<(f64, f64)>,
    /// Ranges, drawn as thin vertical lines: (x, low, high).
    pub ranges: Vec<(f64, f64, f64)>,
    /// Whether points are marked.
    pub marked: bool,
}

/// Scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    Linear,
    Log,
    /// Shares of 0 to 1 by number of nines: 0.9, 0.99, 0.999 are equally spaced.
    Nines,
}

/// Larger shares are drawn as this.
const MOST_NINES: f64 = 6.0;

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Nines => (-(1.0 - value).log10()).clamp(0.0, MOST_NINES),
        }
    }

    fn takes(self, value: f64) -> bool {
        value.is_finite() && (self != Scale::Log || value > 0.0)
    }
}

/// One axis.
pub struct Axis {
    pub label: String,
    pub scale: Scale,
    /// Formats a value.
    pub show: fn(f64) -> String,
    /// Values that the axis must include.
    pub include: Vec<f64>,
    /// Values with labels; chosen automatically if empty.
    pub ticks: Vec<f64>,
}

/// An axis after layout: its ends, and (position, label) of the ticks.
#[derive(Clone)]
struct Laid {
    range: std::ops::Range<f64>,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn lay(&self, values: impl Iterator<Item = f64>, pad: f64) -> Laid {
        let scale = self.scale;
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let all = values.chain(self.include.iter().copied());
        for v in all.filter(|v| scale.takes(*v)) {
            low = low.min(scale.place(v));
            high = high.max(scale.place(v));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low < 1e-9 {
            let room = if scale == Scale::Linear && low != 0.0 {
                // At least this far, the resolution of ticks.
                (low.abs() * 0.1).max(1e-8)
            } else {
                0.1
            };
            (low, high) = (low - room, high + room);
        }
        let room = (high - low) * pad;
        // An axis that begins at 0 stays there.
        if !(low == 0.0 && scale != Scale::Log) {
            low -= room;
        }
        high += room;
        let ticks = if self.ticks.is_empty() {
            match scale {
                Scale::Linear => linear_ticks(low, high),
                Scale::Log => log_ticks(low, high),
                Scale::Nines => [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999].into(),
            }
        } else {
            self.ticks.clone()
        };
        let ticks = ticks
            .into_iter()
            .map(|v| (scale.place(v), plain(&(self.show)(v))))
            .filter(|(place, _)| (low - 1e-9..=high + 1e-9).contains(place))
            .collect();
        Laid {
            range: low..high,
            ticks,
        }
    }
}

impl Ranged for Laid {
    type ValueType = f64;
    type FormatOption = NoDefaultFormatting;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        // The cast saturates; nothing far outside is drawn.
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Only labelled ticks, no minor ones.
        if hint.weight().allow_light_points() {
            return vec![];
        }
        self.ticks.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Laid {
    fn format_ext(&self, place: &f64) -> String {
        self.ticks
            .iter()
            .find(|(p, _)| (p - place).abs() < 1e-9)
            .map_or_else(String::new, |(_, words)| words.clone())
    }
}

/// About five multiples of 1, 2 or 5 times a power of ten.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|s| *s >= rough * 0.9999)
        .unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Powers of ten, with 2 and 5 between them if there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = high - low;
    let every = (decades / 7.0).ceil().max(1.0) as usize;
    let between: &[f64] = if decades < 0.7 {
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
    } else if decades < 2.2 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    (low.floor() as i64..=high.ceil() as i64)
        .step_by(every)
        .flat_map(|power| between.iter().map(move |m| m * 10f64.powi(power as i32)))
        .collect()
}

fn label(size: f64) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&ink())
}

/// Plots lines through points, and horizontal lines at the values of `reference`.
pub fn lines(
    x: &Axis,
    y: &Axis,
    series: &[Series],
    reference: &[f64],
) -> Result<String, PlotError> {
    let sound = |&(a, b): &(f64, f64)| x.scale.takes(a) && y.scale.takes(b);
    let place = |(a, b): (f64, f64)| (x.scale.place(a), y.scale.place(b));
    let points = || series.iter().flat_map(|s| &s.points).copied().filter(sound);
    let ends = series
        .iter()
        .flat_map(|s| s.ranges.iter().flat_map(|r| [r.1, r.2]));
    let marked = series.iter().any(|s| s.marked);
    let across = x.lay(points().map(|p| p.0), if marked { 0.04 } else { 0.0 });
    let up = y.lay(points().map(|p| p.1).chain(ends), 0.06);
    svg(&across, &up, &x.label, &y.label, |chart| {
        for at in reference.iter().filter(|v| y.scale.takes(**v)) {
            let at = y.scale.place(*at);
            chart.draw_series([PathElement::new(
                vec![(across.range.start, at), (across.range.end, at)],
                axis().stroke_width(3),
            )])?;
        }
        for one in series {
            let colour = one.style.rgb();
            for (at, low, high) in &one.ranges {
                if sound(&(*at, *low)) && sound(&(*at, *high)) {
                    let ends = [place((*at, *low)), place((*at, *high))];
                    chart.draw_series([PathElement::new(ends.to_vec(), colour.stroke_width(3))])?;
                }
            }
            let line: Vec<(f64, f64)> = one
                .points
                .iter()
                .copied()
                .filter(sound)
                .map(place)
                .collect();
            if one.style.dashed {
                chart.draw_series([DashedPathElement::new(
                    line.clone(),
                    14,
                    8,
                    colour.stroke_width(4),
                )])?;
            } else {
                chart.draw_series([PathElement::new(line.clone(), colour.stroke_width(4))])?;
            }
            // A line of a single point would be invisible.
            if one.marked || line.len() == 1 {
                mark(chart, &line, one.style)?;
            }
        }
        Ok(())
    })
}

/// Plots bars in groups: a group per category, a bar for each series with a point (number of the category,
/// value).
pub fn bars(
    y: &Axis,
    categories: &[String],
    series: &[Series],
    reference: f64,
) -> Result<String, PlotError> {
    let room = WIDTH as usize / categories.len().max(1) / 14;
    let across = Laid {
        range: 0.0..categories.len() as f64,
        ticks: categories
            .iter()
            .enumerate()
            .map(|(n, name)| (n as f64 + 0.5, shortened(name, room)))
            .collect(),
    };
    let values = series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
    let up = y.lay(values.chain([0.0, reference]), 0.12);
    let wide = 0.8 / series.len().max(1) as f64;
    svg(&across, &up, "", &y.label, |chart| {
        for (n, one) in series.iter().enumerate() {
            for (category, value) in one.points.iter().filter(|p| p.1.is_finite()) {
                let left = category + 0.1 + n as f64 * wide;
                let corners = [(left + wide * 0.06, 0.0), (left + wide * 0.94, *value)];
                chart.draw_series([Rectangle::new(corners, one.style.rgb().filled())])?;
                let anchor = plotters::style::text_anchor::Pos::new(
                    plotters::style::text_anchor::HPos::Center,
                    plotters::style::text_anchor::VPos::Bottom,
                );
                chart.draw_series([Text::new(
                    (y.show)(*value),
                    (left + wide / 2.0, *value),
                    label(SMALL).pos(anchor),
                )])?;
            }
        }
        let across = [(0.0, reference), (categories.len() as f64, reference)];
        chart.draw_series([PathElement::new(across.to_vec(), axis().stroke_width(3))])?;
        Ok(())
    })
}

/// A name truncated to `room` letters with an ellipsis.
fn shortened(name: &str, room: usize) -> String {
    if name.chars().count() <= room.max(3) {
        return name.to_owned();
    }
    let kept: String = name.chars().take(room.max(3) - 1).collect();
    kept + "…"
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Laid, Laid>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Reason why a plot cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("this plot could not be drawn: {0}")]
pub struct PlotError(#[source] DrawingAreaErrorKind<std::io::Error>);

/// Draws frame, grid and labels, then calls `draw`.
fn svg(
    across: &Laid,
    up: &Laid,
    x_label: &str,
    y_label: &str,
    draw: impl FnOnce(&mut Chart) -> Drawn,
) -> Result<String, PlotError> {
    let mut text = String::new();
    let drawn = (|| {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin_top(22)
            // Room for half of the last label, such as "100 ms".
            .margin_right(48)
            .x_label_area_size(if x_label.is_empty() { 60 } else { 100 })
            // Room for labels such as "99.999 %" and the vertical title.
            .y_label_area_size(175)
            .build_cartesian_2d(across.clone(), up.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(grid().stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(axis().stroke_width(2))
            .set_all_tick_mark_size(10)
            .label_style(label(TEXT))
            .axis_desc_style(label(TEXT))
            .x_labels(across.ticks.len())
            .y_labels(up.ticks.len())
            .x_desc(x_label)
            .y_desc(y_label)
            .draw()?;
        draw(&mut chart)?;
        drop(chart);
        root.present()
    })();
    drawn.map_err(PlotError)?;
    Ok(text)
}

fn mark(chart: &mut Chart, points: &[(f64, f64)], style: Style) -> Drawn {
    let colour = style.rgb();
    for at in points {
        let empty = || EmptyElement::at(*at);
        match style.mark {
            Mark::Circle => {
                chart.draw_series([empty() + Circle::new((0, 0), 9, colour.filled())])?;
            }
            Mark::Ring => {
                chart.draw_series([empty() + Circle::new((0, 0), 8, colour.stroke_width(4))])?;
            }
            Mark::Square => {
                chart
                    .draw_series([empty() + Rectangle::new([(-8, -8), (8, 8)], colour.filled())])?;
            }
            Mark::Triangle => {
                let corners = vec![(0, -11), (10, 8), (-10, 8)];
                chart.draw_series([empty() + Polygon::new(corners, colour.filled())])?;
            }
            Mark::Diamond => {
                let corners = vec![(0, -12), (12, 0), (0, 12), (-12, 0)];
                chart.draw_series([empty() + Polygon::new(corners, colour.filled())])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::palette::Palette;
    use super::*;
    use crate::variant::Variant;
    use crate::words::digits;

    fn axis_of(scale: Scale) -> Axis {
        Axis {
            label: "<label> & \"more\"".into(),
            scale,
            show: digits,
            include: vec![],
            ticks: vec![],
        }
    }

    fn series(points: &[(f64, f64)]) -> Series {
        Series {
            name: "zram".into(),
            style: Palette::default().style(&Variant::Zram, ""),
            points: points.to_vec(),
            ranges: vec![],
            marked: true,
        }
    }

    fn count(svg: &str, tag: &str) -> usize {
        let tree = roxmltree::Document::parse(svg).unwrap();
        tree.descendants()
            .filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", tag)))
            .count()
    }

    fn coordinates(svg: &str) -> Vec<(f64, f64)> {
        let tree = roxmltree::Document::parse(svg).unwrap();
        let lines = tree.descendants().filter_map(|n| n.attribute("points"));
        lines
            .flat_map(|l| l.split_whitespace())
            .map(|pair| {
                let (x, y) = pair.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn lines_lie_inside_and_labels_are_escaped() {
        for (x, y) in [
            (Scale::Linear, Scale::Linear),
            (Scale::Log, Scale::Nines),
            (Scale::Linear, Scale::Log),
        ] {
            let one = series(&[(1.0, 0.25), (10.0, 0.5), (1e6, 0.9999)]);
            let svg = lines(&axis_of(x), &axis_of(y), &[one], &[1.0]).unwrap();
            assert_eq!(count(&svg, "svg"), 1);
            assert!(count(&svg, "polyline") >= 1, "{svg}");
            assert!(count(&svg, "text") >= 4, "{svg}");
            for (a, b) in coordinates(&svg) {
                assert!((0.0..=f64::from(WIDTH)).contains(&a), "x {a}");
                assert!((0.0..=f64::from(HEIGHT)).contains(&b), "y {b}");
            }
        }
    }

    #[test]
    fn the_longest_ticks_stay_clear_of_the_label_beside_them() {
        let up = Axis {
            show: |v| format!("{:.3} %", v * 100.0),
            ..axis_of(Scale::Nines)
        };
        let one = series(&[(1.0, 0.25), (10.0, 0.99999)]);
        let svg = lines(&axis_of(Scale::Log), &up, &[one], &[]).unwrap();
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let number = |n: &roxmltree::Node, name| n.attribute(name).unwrap().parse::<f64>().unwrap();
        let ticks: Vec<_> = tree
            .descendants()
            .filter(|n| n.attribute("text-anchor") == Some("end"))
            .collect();
        assert!(
            ticks.iter().any(|n| n.text().unwrap().trim().len() >= 8),
            "{svg}"
        );
        for tick in ticks {
            let size = number(&tick, "font-size");
            // Digits are slightly wider than half of their height.
            let width = tick.text().unwrap().trim().len() as f64 * 0.56 * size;
            assert!(number(&tick, "x") - width > size, "{svg}");
        }
    }

    #[test]
    fn a_tick_at_the_end_is_not_cut() {
        let across = Axis {
            show: |v| format!("{:.0} ms", v / 1e6),
            ..axis_of(Scale::Log)
        };
        let one = series(&[(1e6, 0.5), (1e8, 0.9)]);
        let svg = lines(&across, &axis_of(Scale::Linear), &[one], &[]).unwrap();
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let mut last = 0.0f64;
        for tick in tree.descendants() {
            let text = tick.text().unwrap_or_default().trim();
            if tick.has_tag_name(("http://www.w3.org/2000/svg", "text")) && text.ends_with(" ms") {
                let number = |name| tick.attribute(name).unwrap().parse::<f64>().unwrap();
                let half = text.len() as f64 * 0.56 * number("font-size") / 2.0;
                last = last.max(number("x"));
                assert!(number("x") + half <= f64::from(WIDTH), "{svg}");
            }
        }
        assert!(last > 0.9 * f64::from(WIDTH), "{svg}");
    }

    #[test]
    fn odd_values_do_no_harm() {
        for points in [
            vec![],
            vec![(1.0, 1.0)],
            vec![(0.0, 0.0), (0.0, 0.0)],
            vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, -3.0)],
            vec![(1e-300, 1e-300), (1e300, 1e300)],
        ] {
            for scale in [Scale::Linear, Scale::Log, Scale::Nines] {
                let svg = lines(&axis_of(scale), &axis_of(scale), &[series(&points)], &[]).unwrap();
                roxmltree::Document::parse(&svg).unwrap();
            }
        }
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let names = [
            "one".to_owned(),
            "a name far too long for any place below a bar, by far".to_owned(),
        ];
        let svg = bars(
            &axis_of(Scale::Linear),
            &names,
            &[series(&[(0.0, 1.0), (1.0, 4.0)])],
            1.0,
        )
        .unwrap();
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let heights: Vec<f64> = tree
            .descendants()
            .filter(|n| n.attribute("fill") == Some("#EB6834"))
            .map(|n| n.attribute("height").unwrap().parse().unwrap())
            .collect();
        assert_eq!(heights.len(), 2);
        assert!((heights[1] / heights[0] - 4.0).abs() < 0.1, "{heights:?}");
        assert!(svg.contains('…'));
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(linear_ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(log_ticks(2.0, 6.0), [1e2, 1e3, 1e4, 1e5, 1e6]);
        assert!(log_ticks(-300.0, 300.0).len() < 12);
    }
}
