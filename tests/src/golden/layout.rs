//! Which fields follow each other in a section of a frame.
//!
//! The layouts are written by hand, from PROTOCOL.md's tables, and the import proves that every
//! recorded frame is annotated with the same names and widths.

use std::fmt::Write;

/// One field of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDef {
    /// Name, unique in its section.
    pub name: String,
    /// Number of bytes.
    pub width: usize,
    /// The sender never writes it: any value may come.
    pub uninit: bool,
}

/// The fields of one section, in wire order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the section.
    pub name: String,
    /// Its fields.
    pub fields: Vec<FieldDef>,
}

/// Every layout, in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layouts(Vec<Layout>);

impl Layouts {
    /// Reads lines `<section> <field>:<width>[?] ...`; `?` marks an uninitialised field, lines
    /// that begin with `#` are comments.
    ///
    /// # Errors
    ///
    /// A malformed line, or a name that occurs twice.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut layouts: Vec<Layout> = Vec::new();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default().to_owned();
            let fields = words
                .map(Self::field)
                .collect::<Result<Vec<FieldDef>, String>>()?;
            let twice = fields.iter().enumerate().find(|(i, field)| {
                fields[..*i]
                    .iter()
                    .any(|earlier| earlier.name == field.name)
            });
            if let Some((_, field)) = twice {
                return Err(format!("{name} has two fields {}", field.name));
            }
            if fields.is_empty() || layouts.iter().any(|layout| layout.name == name) {
                return Err(format!("{name} has no fields or comes twice"));
            }
            layouts.push(Layout { name, fields });
        }
        Ok(Self(layouts))
    }

    fn field(word: &str) -> Result<FieldDef, String> {
        let (name, width) = word
            .split_once(':')
            .ok_or_else(|| format!("{word}: want name:width"))?;
        let uninit = width.ends_with('?');
        let width = width
            .trim_end_matches('?')
            .parse()
            .map_err(|_| format!("width in {word}"))?;
        if !(1..=8).contains(&width) {
            return Err(format!("{word}: a field has 1 to 8 bytes"));
        }
        Ok(FieldDef {
            name: name.to_owned(),
            width,
            uninit,
        })
    }

    /// The layout of this section, if it has named fields.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Layout> {
        self.0.iter().find(|layout| layout.name == name)
    }

    /// Every layout in file order.
    pub fn iter(&self) -> impl Iterator<Item = &Layout> {
        self.0.iter()
    }

    /// The lines [`Layouts::parse`] reads, without comments.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for layout in &self.0 {
            text.push_str(&layout.name);
            for field in &layout.fields {
                let mark = if field.uninit { "?" } else { "" };
                let _ = write!(text, " {}:{}{mark}", field.name, field.width);
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back() {
        let text = "tlv magic:4 len:8\nses pad:6?\n";
        let layouts = Layouts::parse(&format!("# why\n\n{text}")).unwrap();
        assert_eq!(layouts.text(), text);
        assert!(layouts.get("ses").unwrap().fields[0].uninit);
        assert!(layouts.get("nop").is_none());
        assert_eq!(layouts.iter().count(), 2);
    }

    #[test]
    fn damage_is_refused() {
        for bad in [
            "a",
            "a x",
            "a x:",
            "a x:9",
            "a x:0",
            "a x:1\na y:1",
            "a x:1 x:2",
        ] {
            assert!(Layouts::parse(bad).is_err(), "{bad}");
        }
    }
}
