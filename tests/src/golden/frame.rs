//! Looking at a frame: its bytes per stream, its fields by name.

use super::model::{Body, Carrier, Field, Frame, Place, Section};

/// Sections of which a frame may have several; their fields are `name[i].field`.
const REPEATED: [&str; 6] = [
    "in_sge",
    "out_sge",
    "out_len",
    "portal",
    "portal_uri",
    "rkey_pair",
];

/// A field with its full name and position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// `section.field`, or the name of a section without named fields.
    pub path: String,
    /// Where it travels.
    pub place: Place,
    /// Its offset among the bytes of that place.
    pub offset: usize,
    /// Its bytes.
    pub value: Vec<u8>,
    /// The field, if the section has named ones.
    pub field: Option<&'a Field>,
}

/// Every field of these sections in wire order.
#[must_use]
pub fn named(sections: &[Section]) -> Vec<Named<'_>> {
    let mut all = Vec::new();
    let mut ends = [0; 3];
    for (i, section) in sections.iter().enumerate() {
        let place = section.place;
        let before = sections[..i]
            .iter()
            .filter(|s| s.name == section.name)
            .count();
        let prefix = if REPEATED.contains(&section.name.as_str()) {
            format!("{}[{before}]", section.name)
        } else {
            section.name.clone()
        };
        let end = &mut ends[place as usize];
        match &section.body {
            Body::Bytes(payload) => {
                let value = payload.bytes();
                let len = value.len();
                all.push(Named {
                    path: prefix,
                    place,
                    offset: *end,
                    value,
                    field: None,
                });
                *end += len;
            }
            Body::Fields(fields) => {
                for field in fields {
                    let path = format!("{prefix}.{}", field.name);
                    let value = field.value.clone();
                    all.push(Named {
                        path,
                        place,
                        offset: *end,
                        value,
                        field: Some(field),
                    });
                    *end += field.value.len();
                }
            }
        }
    }
    all
}

/// The bytes of these sections that travel in one place.
#[must_use]
pub fn bytes_at(sections: &[Section], place: Place) -> Vec<u8> {
    sections
        .iter()
        .filter(|s| s.place == place)
        .flat_map(Section::bytes)
        .collect()
}

impl Frame {
    /// Its bytes in one place.
    #[must_use]
    pub fn bytes(&self, place: Place) -> Vec<u8> {
        bytes_at(&self.sections, place)
    }

    /// Its bytes in one piece: headers, lists, application header, padding, data.
    #[must_use]
    pub fn contiguous(&self) -> Vec<u8> {
        self.sections.iter().flat_map(Section::bytes).collect()
    }

    /// The first section of this name.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The value of `section.field`; of the first such section if there are several.
    #[must_use]
    pub fn number(&self, section: &str, field: &str) -> Option<u64> {
        match &self.section(section)?.body {
            Body::Fields(fields) => fields.iter().find(|f| f.name == field).map(Field::number),
            Body::Bytes(_) => None,
        }
    }

    /// The bytes of its application data, wherever they travel.
    #[must_use]
    pub fn data(&self) -> Vec<u8> {
        self.section("data").map(Section::bytes).unwrap_or_default()
    }

    /// The bytes the NIC gathered behind the first segment, which the length in the header of
    /// the frame leaves out.
    #[must_use]
    pub fn gathered(&self) -> u32 {
        match &self.carrier {
            Carrier::Send { gather, .. } => gather.iter().skip(1).sum(),
            Carrier::Socket { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::payload::Payload;

    fn fields(place: Place, name: &str, value: &[u8]) -> Section {
        let field = Field {
            name: "x".into(),
            value: value.to_vec(),
            uninit: false,
        };
        Section {
            place,
            name: name.into(),
            body: Body::Fields(vec![field]),
        }
    }

    #[test]
    fn fields_are_found_by_name_and_position() {
        let data = Section {
            place: Place::Data,
            name: "data".into(),
            body: Body::Bytes(Payload::Raw(vec![9; 3])),
        };
        let sections = [
            fields(Place::Main, "tlv", &[1, 2]),
            fields(Place::Main, "in_sge", &[3]),
            data,
            fields(Place::Main, "in_sge", &[4]),
        ];
        let seen: Vec<(String, usize)> = named(&sections)
            .into_iter()
            .map(|n| (n.path, n.offset))
            .collect();
        let want = [
            ("tlv.x", 0),
            ("in_sge[0].x", 2),
            ("data", 0),
            ("in_sge[1].x", 3),
        ];
        assert_eq!(seen, want.map(|(path, offset)| (path.to_owned(), offset)));
        assert_eq!(bytes_at(&sections, Place::Main), [1, 2, 3, 4]);
    }
}
