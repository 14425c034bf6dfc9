//! Checks whether JSON has the form that its schema describes.

use serde_json::Value;

/// Deviations of a value from its schema. Supports the part of JSON Schema that latpath's schemas use. A key that is
/// missing from the schema is also a deviation.
pub fn misfits(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(schema, schema, value, "", &mut found);
    found
}

fn collect(whole: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        collect(whole, whole.pointer(&reference[1..]).unwrap_or(&Value::Null), value, at, found);
    } else if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let fits = |choice: &&Value| {
            let mut found = Vec::new();
            collect(whole, choice, value, at, &mut found);
            found.is_empty()
        };
        if !choices.iter().any(|choice| fits(&choice)) {
            found.push(format!("{at}: {value} is none of {choices:?}"));
        }
    } else if let Some(known) = schema["const"].as_str() {
        if value != known {
            found.push(format!("{at}: {value} is not {known}"));
        }
    } else {
        let types = match &schema["type"] {
            Value::Array(types) => types.clone(),
            one => vec![one.clone()],
        };
        let own = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        if !types.iter().any(|of| of == own || of == "number" && own == "integer") {
            found.push(format!("{at}: {own} instead of {types:?}"));
        }
        for (i, item) in value.as_array().into_iter().flatten().enumerate() {
            collect(whole, &schema["items"], item, &format!("{at}[{i}]"), found);
        }
        let Some(fields) = value.as_object() else { return };
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(required.filter(|key| !fields.contains_key(*key)).map(|key| format!("{at}.{key}: lacking")));
        for (key, field) in fields {
            let known = [&schema["properties"][key], &schema["additionalProperties"]];
            match known.into_iter().find(|of| of.is_object()) {
                None => found.push(format!("{at}.{key}: not in the schema")),
                Some(of) => collect(whole, of, field, &format!("{at}.{key}"), found),
            }
        }
    }
}
