//! Captures made of recorded conversations, as they are and damaged in every way that a network or
//! a person may think of.

mod capture;
mod damage;
mod golden;
mod hostile;
mod links;
mod loose;
mod packets;
mod roce;
mod seeds;

use std::collections::BTreeMap;

use xio_decode::{Item, Options, SourceError, Summary, What, decode};

/// What decoding came to.
#[derive(Debug)]
struct Seen {
    items: Vec<Item>,
    summary: Summary,
}

impl Seen {
    /// Names of the frames, in the order told.
    fn kinds(&self) -> Vec<&'static str> {
        self.items.iter().filter_map(kind).collect()
    }

    /// Names of the frames of each direction.
    fn by_direction(&self) -> BTreeMap<(u32, &'static str), Vec<&'static str>> {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for item in &self.items {
            if let Some(kind) = kind(item) {
                all.entry((item.stream, item.dir.name()))
                    .or_default()
                    .push(kind);
            }
        }
        all
    }

    /// All that is wrong, as text.
    fn troubles(&self) -> Vec<String> {
        let trouble = |item: &Item| match &item.what {
            What::Frame(frame) => {
                let trouble = frame.trouble.as_ref()?;
                Some(format!(
                    "{} at {}: {}",
                    frame.kind, trouble.offset, trouble.text
                ))
            }
            What::Lost(lost) => {
                let at = item.at;
                Some(format!("{} lost from {at}: {}", lost.bytes, lost.why))
            }
        };
        self.items.iter().filter_map(trouble).collect()
    }

    fn count(&self, what: &str) -> u64 {
        self.summary.counts.get(what).copied().unwrap_or(0)
    }
}

fn kind(item: &Item) -> Option<&'static str> {
    match &item.what {
        What::Frame(frame) => Some(frame.kind),
        What::Lost(_) => None,
    }
}

/// Decodes, and looks that every item can be shown.
fn try_see(input: &[u8], options: Options) -> Result<Seen, SourceError> {
    let mut items = Vec::new();
    let summary = decode(input, options, |item| {
        items.push(item.clone());
        Ok(())
    })?;
    for (i, item) in items.iter().enumerate() {
        assert_eq!(item.n, i as u64 + 1);
        let text = xio_decode::text(item);
        assert!(text.starts_with(&format!("#{} ", item.n)), "{text}");
        let json = xio_decode::json(item);
        let object: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(object["n"], item.n);
        assert_eq!(object["stream"], item.stream);
        assert_eq!(object["dir"], item.dir.name());
        assert!(object["time"].is_number());
        assert!(
            object["type"].is_string() || object["error"].is_string(),
            "{json}"
        );
        assert_eq!(
            object["error"].is_string(),
            object["offset"].is_number(),
            "{json}"
        );
        assert!(
            object["type"].is_null() || object["len"].is_number(),
            "{json}"
        );
    }
    Ok(Seen { items, summary })
}

fn see(input: &[u8]) -> Seen {
    try_see(input, Options::default()).expect("it can be decoded")
}
