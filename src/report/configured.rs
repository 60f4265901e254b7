//! A configuration as the report of a decision, of which only the configuration is known.

use serde_json::Value;

use super::model::{CellReport, Report, SubcellReport, VERSION};
use crate::config::{Cell, Placement};

impl Report {
    /// A report with the cells and subcells of a configuration, and without samples and threads. A layer of scx_layered is a cell that
    /// is not divided. `json` is the text of the configuration.
    pub(crate) fn of_configuration(placement: &Placement, json: &str) -> Self {
        let cells = if let Some(cells) = placement.cells() {
            cells.iter().map(of_cell).collect()
        } else {
            let layers: Value = serde_json::from_str(json).unwrap_or_default();
            layers.as_array().into_iter().flatten().map(of_layer).collect()
        };
        Self { version: VERSION, cells, ..Self::default() }
    }
}

fn of_cell(cell: &Cell) -> CellReport {
    let subcell = |name: &str, prefixes| SubcellReport { name: name.to_owned(), prefixes, ..SubcellReport::default() };
    let mut subcells: Vec<SubcellReport> = Vec::new();
    for it in &cell.subcells {
        let list = |(prefixes, hint): (&[String], Option<u64>)| {
            prefixes.iter().cloned().chain(hint.map(|hint| format!("hint={hint}"))).collect()
        };
        // As in a report, what takes all others has no conditions.
        let lists = if it.is_catch_all() { Vec::new() } else { it.lists().map(list).collect() };
        subcells.push(subcell(&it.name, lists));
    }
    if subcells.is_empty() {
        subcells.push(subcell(&cell.name, Vec::new()));
    }
    CellReport { name: cell.name.clone(), subcells }
}

fn of_layer(layer: &Value) -> CellReport {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let name = layer.get("name").map(text).unwrap_or_default();
    let condition = |condition: &Value| {
        let all = condition.as_object().into_iter().flatten();
        all.map(|(kind, value)| format!("{kind}={}", text(value))).collect::<Vec<_>>().join(" and ")
    };
    let list = |list: &Value| list.as_array().into_iter().flatten().map(condition).collect::<Vec<String>>();
    let lists = layer.get("matches").and_then(Value::as_array).into_iter().flatten().map(list);
    let prefixes = lists.filter(|list| !list.is_empty()).collect();
    CellReport { name: name.clone(), subcells: vec![SubcellReport { name, prefixes, ..SubcellReport::default() }] }
}
