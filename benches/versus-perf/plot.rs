//! Draws the plots of a comparison.

use crate::host::Machine;
use crate::result::{shown, Plot, Row};
use crate::statistics::Middle;
use crate::svg::{bars, lines, Frame, Group, Series, Value};

impl Plot {
    /// The SVG; `None` if there is nothing to show.
    pub fn draw(&self, rows: &[Row], machine: &Machine) -> Option<String> {
        let value = |middle: &Middle| Value { middle: middle.median, low: middle.low, high: middle.high };
        let frame = |title: &str, values: &str| Frame {
            title: title.to_owned(),
            values: if rows.iter().any(|row| row.rounds > 1) {
                format!("{values}; median and its 95 % interval")
            } else {
                values.to_owned()
            },
            footer: vec![machine.sentence(), machine.command.clone()],
        };
        match self {
            Self::Bars { key, title, values, decimals } => {
                let mut groups: Vec<Group> = Vec::new();
                for row in rows {
                    let Some(middle) = row.values.get(key) else { continue };
                    // Of Markdown.
                    let label = row.case.replace('`', "");
                    if groups.last().is_none_or(|group| group.label != label) {
                        groups.push(Group { label, bars: Vec::new() });
                    }
                    if let Some(group) = groups.last_mut() {
                        group.bars.push((row.tool.clone(), value(middle), shown(Some(middle), *decimals)));
                    }
                }
                (!groups.is_empty()).then(|| bars(&frame(title, values), &groups))
            }
            Self::Lines { key, along, title, values, axis, is_log } => {
                let mut series: Vec<Series> = Vec::new();
                for row in rows {
                    let (Some(middle), Some(at)) = (row.values.get(key), row.values.get(along)) else { continue };
                    let point = (at.median, value(middle));
                    match series.iter_mut().find(|series| series.label == row.tool) {
                        Some(series) => series.points.push(point),
                        None => series.push(Series { label: row.tool.clone(), points: vec![point] }),
                    }
                }
                for one in &mut series {
                    one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
                }
                (!series.is_empty()).then(|| lines(&frame(title, values), axis, *is_log, &series))
            }
        }
    }
}
