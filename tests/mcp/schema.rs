//! Checks values against the part of JSON Schema that the tools use.

use serde_json::Value;

/// Panics if a value is not as a schema says.
#[track_caller]
pub fn check(value: &Value, schema: &Value, at: &str) {
    if let Err(wrong) = conforms(value, schema, at) {
        panic!("{wrong}");
    }
}

fn conforms(value: &Value, schema: &Value, at: &str) -> Result<(), String> {
    let Some(fields) = schema.as_object() else { return Ok(()) };
    for name in fields.keys() {
        let known = [
            "type",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "description",
            "minimum",
            "maximum",
            "enum",
            "oneOf",
            "const",
            "title",
        ];
        if !known.contains(&name.as_str()) {
            return Err(format!("{at}: the schema has {name}, which is not checked"));
        }
    }
    let is_it = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    };
    match fields.get("type") {
        Some(Value::String(kind)) if !is_it(kind) => return Err(format!("{at}: {value} is no {kind}")),
        Some(Value::Array(kinds)) if !kinds.iter().filter_map(Value::as_str).any(is_it) => {
            return Err(format!("{at}: {value} is none of {kinds:?}"));
        }
        _ => {}
    }
    let limit = |name: &str| fields.get(name).and_then(Value::as_f64);
    if let Some(number) = value.as_f64() {
        if limit("minimum").is_some_and(|least| number < least) || limit("maximum").is_some_and(|most| number > most) {
            return Err(format!("{at}: {number} is out of range"));
        }
    }
    if fields.get("const").is_some_and(|only| only != value) {
        return Err(format!("{at}: {value} is another"));
    }
    if fields.get("enum").and_then(Value::as_array).is_some_and(|all| !all.contains(value)) {
        return Err(format!("{at}: {value} is not in the list"));
    }
    if let Some(all) = fields.get("oneOf").and_then(Value::as_array) {
        if all.iter().filter(|schema| conforms(value, schema, at).is_ok()).count() != 1 {
            return Err(format!("{at}: {value} is not one of them"));
        }
    }
    if let Value::Object(given) = value {
        let properties = fields.get("properties").and_then(Value::as_object);
        for (name, value) in given {
            match properties.and_then(|properties| properties.get(name)) {
                Some(schema) => conforms(value, schema, &format!("{at}/{name}"))?,
                None if fields.get("additionalProperties") == Some(&Value::Bool(false)) => {
                    return Err(format!("{at}: {name} is unknown"));
                }
                None => {}
            }
        }
        for name in fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !given.contains_key(name) {
                return Err(format!("{at}: {name} is missing"));
            }
        }
    }
    if let (Value::Array(elements), Some(schema)) = (value, fields.get("items")) {
        for element in elements {
            conforms(element, schema, at)?;
        }
    }
    Ok(())
}

#[test]
fn what_does_not_conform_is_found() {
    use serde_json::json;
    let schema = json!({
        "type": "object", "properties": { "a": { "type": "integer", "minimum": 1 } }, "required": ["a"], "additionalProperties": false
    });
    assert!(conforms(&json!({ "a": 1 }), &schema, "").is_ok());
    for wrong in [json!({}), json!({ "a": 0 }), json!({ "a": "1" }), json!({ "a": 1, "b": 1 }), json!([])] {
        assert!(conforms(&wrong, &schema, "").is_err(), "{wrong}");
    }
}
