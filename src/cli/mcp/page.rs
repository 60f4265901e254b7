//! Answers of bounded size: long lists are cut, what was cut is said, and a cursor asks for the rest.

use serde::Serialize;
use serde_json::{json, Map, Value};

use super::error::{Kind, ToolError};
use scxprof_base::escape;

/// Elements of each list, unless the call asks for another number, and the most that it may ask for.
pub(super) const DEFAULT_LIMIT: usize = 100;
pub(super) const MAX_LIMIT: usize = 1000;
/// Bytes of an answer as JSON. With fewer elements it is made to fit.
const MAX_ANSWER: usize = 64 << 10;
/// A list of so few numbers is one thing, such as a range, and is not cut.
const FEW: usize = 16;
/// Cut lists that an answer tells one by one.
const MAX_CUTS: usize = 20;

/// All that a tool found.
#[derive(Debug, Clone, Default)]
pub(super) struct Document {
    /// The result, as the command line prints it.
    pub(super) value: Value,
    /// What the command line says beside it.
    pub(super) notes: Vec<String>,
    /// Warnings that qualify the result.
    pub(super) warnings: Vec<String>,
}

/// Data of the library as the command line prints them.
pub(super) fn value_of(data: &impl Serialize) -> Result<Value, ToolError> {
    serde_json::to_value(data).map_err(|error| ToolError::new(Kind::Internal, error.to_string()))
}

/// Where in a list of a document the next page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The number of the document.
    pub(super) document: u64,
    from: usize,
    /// A JSON pointer (RFC 6901).
    list: String,
}

impl Cursor {
    /// # Errors
    /// [`Kind::InvalidArguments`]: no answer had this cursor.
    pub(super) fn parse(text: &str) -> Result<Self, ToolError> {
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let numbers = number().zip(number());
        let list = parts.next().filter(|list| list.is_empty() || list.starts_with('/'));
        let cursor = numbers.zip(list).and_then(|((document, from), list)| {
            Some(Self { document, from: usize::try_from(from).ok()?, list: list.to_owned() })
        });
        cursor.ok_or_else(|| {
            ToolError::new(Kind::InvalidArguments, "cursor: take it from next_cursor of an answer, unchanged")
        })
    }

    fn text(&self) -> String {
        format!("{}:{}:{}", self.document, self.from, self.list)
    }
}

/// A list that was cut.
struct Cut {
    /// Lists that it is in.
    depth: usize,
    list: String,
    total: usize,
    shown: usize,
}

/// Lists that were cut.
#[derive(Default)]
struct Cuts(Vec<Cut>);

impl Cuts {
    /// Those that an answer tells: the outer lists before those within them, as only their pages lead to further rows.
    fn told(mut self, document: u64) -> Vec<Value> {
        self.0.sort_by_key(|cut| cut.depth);
        let told = self.0.into_iter().take(MAX_CUTS).map(|Cut { list, total, shown, .. }| {
            let cursor = Cursor { document, from: shown, list: list.clone() };
            json!({ "list": list, "total": total, "shown": shown, "next_cursor": cursor.text() })
        });
        told.collect()
    }

    /// The first `limit` elements of each list.
    fn cut(&mut self, value: &Value, limit: usize, at: &str, depth: usize) -> Value {
        match value {
            Value::Array(list) if list.len() <= FEW && list.iter().all(Value::is_number) => value.clone(),
            Value::Array(list) => self.page(list, 0, limit, at, depth),
            Value::Object(fields) => {
                let cut = |(name, value): (&String, &Value)| {
                    let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                    (printed(name), self.cut(value, limit, &at, depth))
                };
                Value::Object(fields.iter().map(cut).collect::<Map<_, _>>())
            }
            Value::String(text) => Value::String(printed(text)),
            other => other.clone(),
        }
    }

    fn page(&mut self, list: &[Value], from: usize, limit: usize, at: &str, depth: usize) -> Value {
        let rest = list.get(from..).unwrap_or_default();
        let shown = rest.iter().take(limit).enumerate();
        let shown: Vec<Value> = shown
            .map(|(index, element)| self.cut(element, limit, &format!("{at}/{}", from + index), depth + 1))
            .collect();
        if from == 0 && shown.len() < list.len() {
            self.0.push(Cut { depth, list: at.to_owned(), total: list.len(), shown: shown.len() });
        }
        Value::Array(shown)
    }
}

/// A text of the host without what a terminal obeys.
fn printed(text: &str) -> String {
    escape::line(text).into_owned()
}

fn with_lines(answer: &mut Map<String, Value>, cuts: Cuts, number: u64, document: &Document) {
    if cuts.0.len() > MAX_CUTS {
        answer.insert("more_cut".into(), (cuts.0.len() - MAX_CUTS).into());
    }
    if !cuts.0.is_empty() {
        answer.insert("cut".into(), cuts.told(number).into());
    }
    for (name, lines) in [("notes", &document.notes), ("warnings", &document.warnings)] {
        if !lines.is_empty() {
            answer.insert(name.into(), lines.iter().map(|line| Value::String(printed(line))).collect());
        }
    }
}

/// The answer to a call: the whole document with its lists cut, or the page that `cursor` asks for.
///
/// # Errors
/// [`Kind::InvalidArguments`] for a cursor that does not belong to the document; [`Kind::TooLarge`].
pub(super) fn answer(
    document: &Document,
    number: u64,
    limit: usize,
    cursor: Option<&Cursor>,
) -> Result<Value, ToolError> {
    let list = cursor.map(|cursor| {
        let list = document.value.pointer(&cursor.list).and_then(Value::as_array);
        let wrong = || ToolError::new(Kind::InvalidArguments, "cursor: it belongs to another call");
        list.filter(|list| cursor.from <= list.len()).map(|list| (cursor, list)).ok_or_else(wrong)
    });
    let list = list.transpose()?;
    let mut limit = limit.clamp(1, MAX_LIMIT);
    loop {
        let mut answer = Map::new();
        let mut cuts = Cuts::default();
        match list {
            None => {
                answer.insert("result".into(), cuts.cut(&document.value, limit, "", 0));
                with_lines(&mut answer, cuts, number, document);
            }
            Some((Cursor { from, list: at, .. }, list)) => {
                let rows = cuts.page(list, *from, limit, at, 0);
                let end = from + rows.as_array().map_or(0, Vec::len);
                let mut page = json!({ "list": at, "from": from, "total": list.len(), "rows": rows });
                if end < list.len() {
                    page["next_cursor"] = Cursor { document: number, from: end, list: at.clone() }.text().into();
                }
                answer.insert("page".into(), page);
                with_lines(&mut answer, cuts, number, &Document::default());
            }
        }
        let answer = Value::Object(answer);
        if answer.to_string().len() <= MAX_ANSWER {
            return Ok(answer);
        }
        if limit == 1 {
            return Err(ToolError::new(Kind::TooLarge, "the answer is too large even with one element of each list"));
        }
        limit /= 2;
    }
}

/// The schema of all answers. It is short, as each tool has it.
pub(super) fn schema() -> Map<String, Value> {
    let strings = json!({ "type": "array", "items": { "type": "string" } });
    let (object, objects) = (json!({ "type": "object" }), json!({ "type": "array", "items": { "type": "object" } }));
    let schema = json!({
        "type": "object",
        "properties": {
            "result": {},
            "page": object,
            "cut": objects,
            "more_cut": { "type": "integer" },
            "notes": strings,
            "warnings": strings,
            "error": object
        },
        "additionalProperties": false
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any document with long lists.
    fn documents() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![any::<u32>().prop_map(Value::from), "[a-z/~\"]{0,6}".prop_map(Value::from), Just(Value::Null)];
        leaf.prop_recursive(4, 400, 40, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..40).prop_map(Value::from),
                prop::collection::vec(("[a-z/~]{1,3}", inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// All pages of an answer put together; `None` if it does not tell each list that it cut.
    fn whole(document: &Document, limit: usize) -> Option<Value> {
        let mut first = answer(document, 1, limit, None).unwrap();
        let mut open = vec![first.clone()];
        let mut result = first["result"].take();
        while let Some(told) = open.pop() {
            if told.get("more_cut").is_some() {
                return None;
            }
            let cuts = told["cut"].as_array().cloned().unwrap_or_default();
            for cursor in cuts.iter().chain([&told["page"]]).filter_map(|it| it["next_cursor"].as_str()) {
                let page = answer(document, 1, limit, Some(&Cursor::parse(cursor).unwrap())).unwrap();
                let list = result.pointer_mut(page["page"]["list"].as_str().unwrap()).unwrap().as_array_mut().unwrap();
                assert_eq!(page["page"]["from"], list.len());
                list.extend(page["page"]["rows"].as_array().unwrap().clone());
                open.push(page);
            }
        }
        Some(result)
    }

    proptest! {
        #[test]
        fn pages_of_any_document_are_all_of_it(value in documents(), limit in 1usize..30) {
            let document = Document { value, ..Document::default() };
            if let Some(whole) = whole(&document, limit) {
                prop_assert_eq!(whole, document.value);
            }
        }
    }

    fn document(rows: usize) -> Document {
        let row = |number: usize| json!({ "n": number, "inner": (0..20).collect::<Vec<_>>(), "range": [0, 8] });
        let rows: Vec<Value> = (0..rows).map(row).collect();
        Document { value: json!({ "a/b": rows, "x": 1, "evil\u{202e}": "\u{1b}[2J" }), ..Document::default() }
    }

    #[test]
    fn pages_together_are_the_list() {
        let document = document(257);
        let first = answer(&document, 7, 100, None).unwrap();
        assert_eq!(first["result"]["a/b"].as_array().unwrap().len(), 100);
        assert_eq!((first["cut"][0]["total"].as_u64(), first["cut"][0]["shown"].as_u64()), (Some(257), Some(100)));
        let mut rows = first["result"]["a/b"].as_array().unwrap().clone();
        let mut next = first["cut"][0]["next_cursor"].as_str().map(str::to_owned);
        while let Some(cursor) = next {
            let cursor = Cursor::parse(&cursor).unwrap();
            assert_eq!(cursor.document, 7);
            let page = answer(&document, 7, 100, Some(&cursor)).unwrap();
            assert_eq!(page["page"]["from"], rows.len());
            rows.extend(page["page"]["rows"].as_array().unwrap().clone());
            next = page["page"]["next_cursor"].as_str().map(str::to_owned);
        }
        assert_eq!(&rows, document.value["a/b"].as_array().unwrap());
    }

    #[test]
    fn lists_within_rows_have_cursors_of_their_own() {
        let document = document(4);
        let cut = answer(&document, 1, 3, None).unwrap();
        assert_eq!(cut["result"]["a/b"][0]["range"], json!([0, 8]));
        let lists: Vec<_> = cut["cut"].as_array().unwrap().iter().map(|it| it["list"].as_str().unwrap()).collect();
        assert_eq!(lists, ["/a~1b", "/a~1b/0/inner", "/a~1b/1/inner", "/a~1b/2/inner"]);
        let page = answer(&document, 1, 3, Some(&Cursor::parse("1:18:/a~1b/2/inner").unwrap())).unwrap();
        assert_eq!(page["page"], json!({ "list": "/a~1b/2/inner", "from": 18, "total": 20, "rows": [18, 19] }));
    }

    #[test]
    fn outer_lists_are_told_before_those_within_them() {
        let row = |_| json!({ "inner": (0..40).collect::<Vec<_>>() });
        let rows: Vec<Value> = (0..30).map(row).collect();
        let value = json!({ "first": rows, "second": rows, "third": [rows] });
        let document = Document { value, ..Document::default() };
        let cut = answer(&document, 1, 25, None).unwrap();
        let lists: Vec<_> = cut["cut"].as_array().unwrap().iter().map(|it| it["list"].as_str().unwrap()).collect();
        assert_eq!((lists.len(), &lists[..2]), (MAX_CUTS, &["/first", "/second"][..]));
        assert_eq!(cut["more_cut"], 3 + 3 * 25 - MAX_CUTS);
        // With fewer rows all lists of a page are told.
        let page = answer(&document, 1, 10, Some(&Cursor::parse("1:25:/first").unwrap())).unwrap();
        assert_eq!((page["cut"].as_array().unwrap().len(), page.get("more_cut")), (5, None));
    }

    #[test]
    fn an_answer_is_never_too_large() {
        let long = "x".repeat(10_000);
        let value = json!({ "rows": vec![Value::String(long); 1000] });
        let answer = answer(&Document { value, ..Document::default() }, 1, MAX_LIMIT, None).unwrap();
        assert!(answer.to_string().len() <= MAX_ANSWER && !answer["result"]["rows"].as_array().unwrap().is_empty());
        let many: Map<String, Value> = (0..9000).map(|it| (format!("key{it}"), it.into())).collect();
        let wide = Document { value: Value::Object(many), ..Document::default() };
        assert_eq!(super::answer(&wide, 1, 100, None).unwrap_err().kind, Kind::TooLarge);
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        let answer = answer(&document(0), 1, 100, None).unwrap();
        assert_eq!(answer["result"]["evil\\xe2\\x80\\xae"], "\\x1b[2J");
    }

    #[test]
    fn a_cursor_of_another_call_is_refused() {
        for text in ["", "1", "1:2", "a:b:/x", "1:2:x", "-1:0:/a"] {
            assert_eq!(Cursor::parse(text).unwrap_err().kind, Kind::InvalidArguments, "{text}");
        }
        for text in ["1:0:/none", "1:9:/a~1b", "1:0:/x"] {
            let refused = answer(&document(2), 1, 100, Some(&Cursor::parse(text).unwrap()));
            assert_eq!(refused.unwrap_err().kind, Kind::InvalidArguments, "{text}");
        }
    }
}
