//! Writes layers, if scx_layered would load them and do as they say.

use std::collections::BTreeSet;

use super::layer::{compiled, Cpus, Layer, LayerMatch, LayeredError};
use super::layer::{MAX_ANDS, MAX_LAYERS, MAX_NAME, MAX_ORS, MAX_PATH, MAX_REGEXES};
use crate::hint::MAX_HINT;
use crate::sample::Comm;
use scxprof_base::escape;

/// Checks for everything that the scheduler would reject, or would load but not do as written.
///
/// # Errors
/// The first violation.
pub fn check(layers: &[Layer]) -> Result<(), LayeredError> {
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(LayeredError::Layers(layers.len()));
    }
    let mut names = BTreeSet::new();
    let mut regexes = 0;
    let mut hints = BTreeSet::new();
    for (index, layer) in layers.iter().enumerate() {
        let name = &layer.name;
        if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') || !names.insert(name) {
            return Err(LayeredError::Name(name.clone()));
        }
        let is_last = index + 1 == layers.len();
        let count = layer.matches.len();
        if count == 0 || count > MAX_ORS {
            return Err(LayeredError::Ors { layer: name.clone(), count });
        }
        if is_last != layer.matches.iter().any(Vec::is_empty) || (is_last && count != 1) {
            return Err(LayeredError::CatchAll(name.clone()));
        }
        for ands in &layer.matches {
            if ands.len() > MAX_ANDS {
                return Err(LayeredError::Ands { layer: name.clone(), count: ands.len() });
            }
            for condition in ands {
                regexes += usize::from(matches!(condition, LayerMatch::CgroupRegex(_)));
                check_condition(name, condition)?;
                if let LayerMatch::HintEquals(hint) = *condition {
                    if hint > MAX_HINT || ands.len() > 1 || !hints.insert(hint) {
                        return Err(LayeredError::Hint { layer: name.clone(), hint });
                    }
                }
            }
        }
        let Cpus { util_range, cpus_range, .. } = *layer.kind.cpus();
        let is_range = util_range.is_none_or(|(low, high)| 0.0 <= low && low < high && high <= 1.0);
        let has_cpus = cpus_range.is_none_or(|(least, most)| 0 < least && least <= most);
        if !is_range || !has_cpus {
            return Err(LayeredError::Range(name.clone()));
        }
    }
    if regexes > MAX_REGEXES {
        return Err(LayeredError::Regexes(regexes));
    }
    Ok(())
}

fn check_condition(layer: &str, condition: &LayerMatch) -> Result<(), LayeredError> {
    let (text, limit) = match condition {
        LayerMatch::CgroupPrefix(text) | LayerMatch::CgroupSuffix(text) | LayerMatch::CgroupContains(text) => {
            (text, MAX_PATH - 1)
        }
        LayerMatch::CommPrefix(text)
        | LayerMatch::CommPrefixExclude(text)
        | LayerMatch::PcommPrefix(text)
        | LayerMatch::PcommPrefixExclude(text) => (text, Comm::MAX),
        LayerMatch::CgroupRegex(regex) => return compiled(layer, regex).map(drop),
        _ => return Ok(()),
    };
    if text.is_empty() || text.len() > limit || text.contains('\0') {
        return Err(LayeredError::Text { layer: layer.to_owned(), text: text.clone(), limit });
    }
    Ok(())
}

/// The configuration as the scheduler reads it, if it would accept it.
///
/// # Errors
/// Those of [`check`]; then there is no text.
pub fn to_json(layers: &[Layer]) -> Result<String, LayeredError> {
    check(layers)?;
    let layers: Vec<String> = layers.iter().map(layer_json).collect();
    Ok(escape::json(format!("[\n{}\n]\n", layers.join(",\n"))))
}

fn layer_json(layer: &Layer) -> String {
    // Texts, numbers and lists of them: serializing cannot fail.
    let json = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
    let ors: Vec<String> = layer.matches.iter().map(|ands| json(serde_json::to_string(ands))).collect();
    let ors = if ors.len() == 1 { ors.concat() } else { format!("\n      {}\n    ", ors.join(",\n      ")) };
    format!(
        "  {{\n    \"name\": {},\n    \"matches\": [{ors}],\n    \"kind\": {}\n  }}",
        json(serde_json::to_string(&layer.name)),
        json(serde_json::to_string(&layer.kind))
    )
}
