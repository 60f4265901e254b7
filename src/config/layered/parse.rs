//! Reads a file of scx_layered: all that release 1.1.4 reads (src/config.rs), and refuses what it refuses.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

use super::layer::{compiled, Cpus, Growth, Layer, LayerKind, LayerMatch, LayeredError};
use super::layer::{MAX_ANDS, MAX_LAYERS, MAX_NAME, MAX_ORS, MAX_PATH, MAX_REGEXES};
use crate::hint::MAX_HINT;

/// Bytes of a prefix of a name that the scheduler takes; with more it panics, as a NUL follows (`MAX_COMM`).
const MAX_PREFIX: usize = 15;
/// Bytes of a `CmdJoin`, which is stored as a prefix of a name.
const MAX_JOIN: usize = 15;

/// Why a text is not a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// It is not JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The whole is no list.
    #[error(
        "a configuration of scx_layered is a list of layers: [{{\"name\": ..., \"matches\": ..., \"kind\": ...}}, ...]"
    )]
    NoList,
    /// A layer has something that scx_layered does not read.
    #[error("layer {layer}, {field}: {problem}")]
    Field {
        /// The layer: its name, or its number from 1 if it has no name.
        layer: String,
        /// The field, such as `kind.Confined.util_range`.
        field: String,
        /// What it is, and what is allowed.
        problem: String,
    },
}

/// What a value may be.
#[derive(Debug, Clone, Copy)]
enum Type {
    Text,
    Bool,
    I32,
    U32,
    U64,
    F64,
    Pair(Number),
    Numbers,
    Growth,
    Placement,
}

#[derive(Debug, Clone, Copy)]
enum Number {
    Usize,
    Float,
    U64,
    U64AndU32,
}

/// The conditions, and the type of each.
const MATCHES: [(&str, Type); 28] = [
    ("CgroupPrefix", Type::Text),
    ("CgroupSuffix", Type::Text),
    ("CgroupContains", Type::Text),
    ("CgroupRegex", Type::Text),
    ("CommPrefix", Type::Text),
    ("CommPrefixExclude", Type::Text),
    ("PcommPrefix", Type::Text),
    ("PcommPrefixExclude", Type::Text),
    ("NiceAbove", Type::I32),
    ("NiceBelow", Type::I32),
    ("NiceEquals", Type::I32),
    ("UIDEquals", Type::U32),
    ("GIDEquals", Type::U32),
    ("PIDEquals", Type::U32),
    ("PPIDEquals", Type::U32),
    ("TGIDEquals", Type::U32),
    ("NSPIDEquals", Type::Pair(Number::U64AndU32)),
    ("NSEquals", Type::U32),
    ("CmdJoin", Type::Text),
    ("IsGroupLeader", Type::Bool),
    ("IsKthread", Type::Bool),
    ("UsedGpuTid", Type::Bool),
    ("UsedGpuPid", Type::Bool),
    ("AvgRuntime", Type::Pair(Number::U64)),
    ("HintEquals", Type::U64),
    ("SystemCpuUtilBelow", Type::F64),
    ("DsqInsertBelow", Type::F64),
    ("NumaNode", Type::U32),
];

/// The options of every kind of layer, and those that may be `null`.
const COMMON: [(&str, Type, bool); 23] = [
    ("min_exec_us", Type::U64, false),
    ("yield_ignore", Type::F64, false),
    ("slice_us", Type::U64, false),
    ("fifo", Type::Bool, false),
    ("preempt", Type::Bool, false),
    ("preempt_first", Type::Bool, false),
    ("exclusive", Type::Bool, false),
    ("allow_node_aligned", Type::Bool, true),
    ("skip_remote_node", Type::Bool, false),
    ("prev_over_idle_core", Type::Bool, false),
    ("weight", Type::U32, false),
    ("disallow_open_after_us", Type::U64, true),
    ("disallow_preempt_after_us", Type::U64, true),
    ("xllc_mig_min_us", Type::F64, false),
    ("idle_smt", Type::Bool, true),
    ("growth_algo", Type::Growth, false),
    ("util_peak_half_life_ms", Type::U64, false),
    ("perf", Type::U64, false),
    ("idle_resume_us", Type::U32, true),
    ("nodes", Type::Numbers, false),
    ("llcs", Type::Numbers, false),
    ("placement", Type::Placement, false),
    ("member_expire_ms", Type::U64, false),
];
/// The same of those with a range.
const RANGES: [(&str, Type, bool); 2] = [
    ("xnuma_threshold", Type::Pair(Number::Float), false),
    ("xnuma_threshold_delta", Type::Pair(Number::Float), false),
];
/// The options of `Confined` and `Grouped` besides; an `Open` layer may have them, and the scheduler ignores them there.
const OWN_CPUS: [(&str, Type, bool); 5] = [
    ("util_range", Type::Pair(Number::Float), false),
    ("cpus_range", Type::Pair(Number::Usize), true),
    ("cpus_range_frac", Type::Pair(Number::Float), true),
    ("membw_gb", Type::F64, true),
    ("protected", Type::Bool, false),
];
/// Those of `Grouped` alone.
const GROUPED: [(&str, Type, bool); 2] =
    [("util_includes_open_cputime", Type::Bool, false), ("idle_confined", Type::Bool, false)];

const KINDS: [&str; 3] = ["Confined", "Grouped", "Open"];
const GROWTHS: [&str; 16] = [
    "Sticky",
    "Linear",
    "Reverse",
    "Random",
    "Topo",
    "RoundRobin",
    "BigLittle",
    "LittleBig",
    "NodeSpread",
    "NodeSpreadReverse",
    "NodeSpreadRandom",
    "CpuSetSpread",
    "CpuSetSpreadReverse",
    "CpuSetSpreadRandom",
    "RandomTopo",
    "StickyDynamic",
];
const PLACEMENTS: [&str; 3] = ["Standard", "Sticky", "Floating"];

/// The names that scxprof knows of the file, to be compared with those of another release.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Known {
    /// The kinds of conditions.
    pub conditions: Vec<&'static str>,
    /// The kinds of layers.
    pub kinds: Vec<&'static str>,
    /// The options of any kind of layer.
    pub options: Vec<&'static str>,
    /// The growth algorithms.
    pub growths: Vec<&'static str>,
    /// The placements.
    pub placements: Vec<&'static str>,
}

impl Known {
    /// Of release 1.1.4.
    #[must_use]
    pub fn new() -> Self {
        let options = [&COMMON[..], &RANGES, &OWN_CPUS, &GROUPED].concat();
        Self {
            conditions: MATCHES.iter().map(|it| it.0).collect(),
            kinds: KINDS.to_vec(),
            options: options.iter().map(|it| it.0).collect(),
            growths: GROWTHS.to_vec(),
            placements: PLACEMENTS.to_vec(),
        }
    }
}

impl Default for Known {
    fn default() -> Self {
        Self::new()
    }
}

impl Type {
    /// What it is, for people; `None` if the value is of this type.
    fn problem(self, value: &Value) -> Option<String> {
        let (is_it, what) = match self {
            Self::Text => (value.is_string(), "a text".to_owned()),
            Self::Bool => (value.is_boolean(), "true or false".to_owned()),
            Self::I32 => (
                value.as_i64().is_some_and(|it| i32::try_from(it).is_ok()),
                format!("a whole number from {} to {}", i32::MIN, i32::MAX),
            ),
            Self::U32 => (is_u32(value), format!("a whole number from 0 to {}", u32::MAX)),
            Self::U64 => (value.is_u64(), "a whole number from 0 up".to_owned()),
            Self::F64 => (value.is_number(), "a number".to_owned()),
            Self::Pair(number) => {
                let is = |value: &Value, at: usize| match number {
                    Number::Float => value.is_number(),
                    Number::U64AndU32 if at == 1 => is_u32(value),
                    Number::Usize | Number::U64 | Number::U64AndU32 => value.is_u64(),
                };
                let pair = value.as_array().filter(|pair| pair.len() == 2);
                let is_pair = pair.is_some_and(|pair| pair.iter().zip(0..).all(|(value, at)| is(value, at)));
                let what = if matches!(number, Number::Float) { "numbers" } else { "whole numbers from 0 up" };
                (is_pair, format!("a list of two {what}"))
            }
            Self::Numbers => (
                value.as_array().is_some_and(|list| list.iter().all(Value::is_u64)),
                "a list of whole numbers from 0 up".to_owned(),
            ),
            Self::Growth => return no_choice(value, &GROWTHS),
            Self::Placement => return no_choice(value, &PLACEMENTS),
        };
        (!is_it).then(|| format!("{} is not {what}", shown(value)))
    }
}

fn is_u32(value: &Value) -> bool {
    value.as_u64().is_some_and(|it| u32::try_from(it).is_ok())
}

fn no_choice(value: &Value, choices: &[&str]) -> Option<String> {
    let is_one = value.as_str().is_some_and(|text| choices.contains(&text));
    (!is_one).then(|| format!("{} is none of {}", shown(value), choices.join(", ")))
}

/// A value in a message.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

/// The one of these names that is most like another.
fn like<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let near = names.map(|it| (strsim::damerau_levenshtein(&name, &it.to_lowercase()), it)).min();
    near.filter(|(far, it)| *far <= it.len() / 3).map(|(_, it)| it)
}

/// A name that is allowed, for the end of a message.
fn meant<'a>(name: &str, allowed: impl Iterator<Item = &'a str>) -> String {
    like(name, allowed).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// What a missing field may have been called, for the end of a message.
fn instead<'a>(name: &str, there: impl Iterator<Item = &'a str>) -> String {
    like(name, there).map_or_else(String::new, |near| format!("; it has {near:?}"))
}

/// Reads what scx_layered reads. Options that do not say which threads a layer takes, or how many CPUs it has, are checked and left
/// out.
///
/// # Errors
/// The scheduler could not parse it. See [`loads`] for what it refuses after that.
pub fn parse(json: &str) -> Result<Vec<Layer>, ParseError> {
    let value: Value = serde_json::from_str(json)?;
    let Value::Array(layers) = value else { return Err(ParseError::NoList) };
    layers.iter().zip(1..).map(|(layer, number)| Reader::new(layer, number)?.layer()).collect()
}

/// Reads one layer.
struct Reader<'a> {
    /// Its name, or its number.
    called: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Reader<'a> {
    fn new(value: &'a Value, number: usize) -> Result<Self, ParseError> {
        let name = value.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let called = name.map_or_else(|| number.to_string(), |name| format!("{name:?}"));
        match value.as_object() {
            Some(fields) => Ok(Self { called, fields }),
            None => Err(ParseError::Field {
                layer: called,
                field: "itself".to_owned(),
                problem: format!("{} is not an object", shown(value)),
            }),
        }
    }

    fn error(&self, field: impl Into<String>, problem: impl Into<String>) -> ParseError {
        ParseError::Field { layer: self.called.clone(), field: field.into(), problem: problem.into() }
    }

    fn required(&self, name: &str) -> Result<&'a Value, ParseError> {
        self.fields.get(name).ok_or_else(|| {
            let instead = instead(name, self.fields.keys().map(String::as_str));
            self.error(format!("field {name}"), format!("it is missing{instead}"))
        })
    }

    fn layer(&self) -> Result<Layer, ParseError> {
        let name = self.required("name")?;
        let Some(name) = name.as_str() else {
            return Err(self.error("field name", format!("{} is not a text", shown(name))));
        };
        if let Some(comment) = self.fields.get("comment").filter(|it| !it.is_string() && !it.is_null()) {
            return Err(self.error("field comment", format!("{} is not a text", shown(comment))));
        }
        let template = match self.fields.get("template") {
            None | Some(Value::Null) => None,
            Some(value) => Some(self.condition(value, "field template")?),
        };
        if let Some(template) = &template {
            if !matches!(template, LayerMatch::CgroupSuffix(_) | LayerMatch::CgroupRegex(_)) {
                let kind = template.kind();
                return Err(
                    self.error("field template", format!("{kind} cannot be one, only CgroupSuffix and CgroupRegex"))
                );
            }
        }
        let matches = self.required("matches")?;
        let Some(ors) = matches.as_array() else {
            let problem = format!("{} is not a list of lists of conditions", shown(matches));
            return Err(self.error("field matches", problem));
        };
        let mut read = Vec::with_capacity(ors.len());
        for (ands, or) in ors.iter().zip(0..) {
            let Some(ands) = ands.as_array() else {
                let problem = format!("{} is not a list of conditions: all in it must hold", shown(ands));
                return Err(self.error(format!("field matches[{or}]"), problem));
            };
            let one = |(value, and): (&Value, usize)| self.condition(value, &format!("field matches[{or}][{and}]"));
            read.push(ands.iter().zip(0..).map(one).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Layer { name: name.to_owned(), template, matches: read, kind: self.kind()? })
    }

    /// One of the conditions at `field`.
    fn condition(&self, value: &Value, field: &str) -> Result<LayerMatch, ParseError> {
        let Some((kind, operand)) = only(value) else {
            let problem = format!(
                "{} is no condition, which is an object with one key: {{\"CommPrefix\": \"web\"}}",
                shown(value)
            );
            return Err(self.error(field, problem));
        };
        let Some((_, expected)) = MATCHES.iter().find(|(name, _)| *name == kind) else {
            let all: Vec<&str> = MATCHES.iter().map(|it| it.0).collect();
            let near = meant(kind, all.iter().copied());
            let problem = format!("{kind:?} is no condition of scx_layered, which has {}{near}", all.join(", "));
            return Err(self.error(field, problem));
        };
        if let Some(problem) = expected.problem(operand) {
            return Err(self.error(format!("{field}.{kind}"), problem));
        }
        // The types have been checked, so this cannot fail.
        serde_json::from_value(value.clone()).map_err(|error| self.error(format!("{field}.{kind}"), error.to_string()))
    }

    fn kind(&self) -> Result<LayerKind, ParseError> {
        let value = self.required("kind")?;
        let Some((kind, options)) = only(value) else {
            let problem = format!("{} is not one of {} with its options", shown(value), KINDS.join(", "));
            return Err(self.error("field kind", problem));
        };
        if !KINDS.contains(&kind) {
            let near = meant(kind, KINDS.into_iter());
            return Err(self.error("field kind", format!("{kind:?} is none of {}{near}", KINDS.join(", "))));
        }
        let Some(options) = options.as_object() else {
            let problem = format!("{} is not an object of options", shown(options));
            return Err(self.error(format!("field kind.{kind}"), problem));
        };
        let own: &[_] = if kind == "Open" { &[] } else { &OWN_CPUS };
        let grouped: &[_] = if kind == "Grouped" { &GROUPED } else { &[] };
        let known: BTreeMap<&str, (Type, bool)> = [&COMMON[..], &RANGES, own, grouped]
            .concat()
            .into_iter()
            .map(|(name, of, null)| (name, (of, null)))
            .collect();
        for (name, value) in options {
            // As serde does it, the scheduler ignores what it does not know.
            let Some(&(of, may_be_null)) = known.get(name.as_str()) else { continue };
            let problem = if may_be_null && value.is_null() { None } else { of.problem(value) };
            if let Some(problem) = problem {
                return Err(self.error(format!("field kind.{kind}.{name}"), problem));
            }
        }
        if kind == "Open" {
            let cpus = Cpus { growth_algo: growth(options), ..Cpus::default() };
            return Ok(LayerKind::Open(cpus));
        }
        if !options.contains_key("util_range") {
            let instead =
                instead("util_range", options.keys().map(String::as_str).filter(|name| !known.contains_key(name)));
            return Err(self.error(format!("field kind.{kind}.util_range"), format!("it is missing{instead}")));
        }
        let of = |name: &str| options.get(name).and_then(|pair| serde_json::from_value(pair.clone()).ok());
        let cpus = Cpus {
            util_range: of("util_range"),
            growth_algo: growth(options),
            cpus_range: of("cpus_range").map(whole),
        };
        Ok(if kind == "Confined" { LayerKind::Confined(cpus) } else { LayerKind::Grouped(cpus) })
    }
}

fn whole((least, most): (f64, f64)) -> (usize, usize) {
    (least as usize, most as usize)
}

fn growth(options: &Map<String, Value>) -> Growth {
    options.get("growth_algo").and_then(|name| serde_json::from_value(name.clone()).ok()).unwrap_or_default()
}

/// The one key of an object, and its value.
fn only(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.iter().next().map(|(key, value)| (key.as_str(), value))
}

/// Checks what scx_layered checks when it loads layers (`verify_layer_specs`, `init_layers`), or would panic over.
///
/// # Errors
/// The first violation.
pub fn loads(layers: &[Layer]) -> Result<(), LayeredError> {
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(LayeredError::Layers(layers.len()));
    }
    let mut regexes = 0;
    let mut layer_of_hint: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, layer) in layers.iter().enumerate() {
        let name = &layer.name;
        if name.len() >= 2 * MAX_NAME || name.contains('\0') {
            return Err(LayeredError::Name(name.clone()));
        }
        let is_last = index + 1 == layers.len();
        let count = layer.matches.len();
        if is_last && !matches!(layer.matches.as_slice(), [ands] if ands.is_empty()) {
            return Err(LayeredError::LastLayer(name.clone()));
        }
        if count == 0 || count > MAX_ORS {
            return Err(LayeredError::Ors { layer: name.clone(), count });
        }
        for ands in &layer.matches {
            if ands.len() > MAX_ANDS {
                return Err(LayeredError::Ands { layer: name.clone(), count: ands.len() });
            }
            for condition in ands {
                regexes += usize::from(matches!(condition, LayerMatch::CgroupRegex(_)));
                loads_condition(name, condition)?;
            }
            if let Some(hint) = hint_of(name, ands)? {
                if *layer_of_hint.entry(hint).or_insert(index) != index {
                    return Err(LayeredError::Hint { layer: name.clone(), hint });
                }
            }
        }
        let Cpus { util_range, cpus_range, .. } = *layer.kind.cpus();
        let is_range = util_range.is_none_or(|(low, high)| 0.0 <= low && low < high);
        if !is_range || cpus_range.is_some_and(|(least, most)| least > most) {
            return Err(LayeredError::Range(name.clone()));
        }
    }
    if regexes > MAX_REGEXES {
        return Err(LayeredError::Regexes(regexes));
    }
    Ok(())
}

/// The hint of an alternative, which may only have conditions on the load besides.
fn hint_of(layer: &str, ands: &[LayerMatch]) -> Result<Option<u64>, LayeredError> {
    let hints: Vec<u64> =
        ands.iter().filter_map(|it| if let LayerMatch::HintEquals(hint) = it { Some(*hint) } else { None }).collect();
    let count = |is: fn(&LayerMatch) -> bool| ands.iter().filter(|it| is(it)).count();
    let below = [
        count(|it| matches!(it, LayerMatch::SystemCpuUtilBelow(_))),
        count(|it| matches!(it, LayerMatch::DsqInsertBelow(_))),
    ];
    let others = ands.len() - hints.len() - below.iter().sum::<usize>();
    match hints.first() {
        Some(&hint) if hint > MAX_HINT || hints.len() > 1 || others > 0 || below.iter().any(|&it| it > 1) => {
            Err(LayeredError::Hint { layer: layer.to_owned(), hint })
        }
        None if below.iter().any(|&it| it > 0) => Err(LayeredError::Below(layer.to_owned())),
        hint => Ok(hint.copied()),
    }
}

fn loads_condition(layer: &str, condition: &LayerMatch) -> Result<(), LayeredError> {
    let (text, limit) = match condition {
        LayerMatch::CgroupPrefix(text) | LayerMatch::CgroupSuffix(text) | LayerMatch::CgroupContains(text) => {
            (text, MAX_PATH - 1)
        }
        LayerMatch::CommPrefix(text)
        | LayerMatch::CommPrefixExclude(text)
        | LayerMatch::PcommPrefix(text)
        | LayerMatch::PcommPrefixExclude(text) => (text, MAX_PREFIX),
        LayerMatch::CmdJoin(text) => (text, MAX_JOIN),
        LayerMatch::CgroupRegex(regex) => return compiled(layer, regex).map(drop),
        LayerMatch::SystemCpuUtilBelow(part) | LayerMatch::DsqInsertBelow(part) => {
            let is_part = (0.0..=1.0).contains(part);
            return if is_part { Ok(()) } else { Err(LayeredError::Part { layer: layer.to_owned(), part: *part }) };
        }
        _ => return Ok(()),
    };
    // An empty text matches everything, as for the scheduler.
    if text.len() > limit || text.contains('\0') {
        return Err(LayeredError::Text { layer: layer.to_owned(), text: text.clone(), limit });
    }
    Ok(())
}
