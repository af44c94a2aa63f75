//! `tests/FAULTS.md` and `tests/DEFECTS.md` say of each known fault what holds it; this holds
//! them to the code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const FAULTS: &str = include_str!("../../FAULTS.md");
const DEFECTS: &str = include_str!("../../DEFECTS.md");

/// Entries of each kind of fault: 166 in all, with gaps where the list has some.
const FAULT_KINDS: [(char, &[u8]); 10] = [
    (
        'A',
        &[
            1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 22, 23, 24, 25, 26, 27,
            28, 29,
        ],
    ),
    (
        'B',
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
        ],
    ),
    (
        'F',
        &[3, 4, 5, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21],
    ),
    (
        'D',
        &[
            3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        ],
    ),
    (
        'C',
        &[2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18],
    ),
    (
        'G',
        &[1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17],
    ),
    (
        'E',
        &[1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
    ),
    ('H', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ('J', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ('I', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
];

/// Defects of each kind, numbered without gaps: 160 in all.
const DEFECT_KINDS: [(char, u8); 6] = [
    ('K', 44),
    ('M', 42),
    ('F', 18),
    ('H', 28),
    ('V', 17),
    ('T', 11),
];

/// How many entries may be short of an answer. It goes down only.
const NOT_YET: [usize; 2] = [0, 0];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Test,
    Impossible,
    NotYet,
}

/// A row: number, what goes wrong, what holds it.
fn rows(text: &str) -> Vec<[&str; 3]> {
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| entry ");
    text.lines()
        .filter(is_row)
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            <[&str; 3]>::try_from(cells).unwrap_or_else(|_| panic!("three cells: {line}"))
        })
        .collect()
}

fn answer(row: &[&str; 3]) -> (Answer, String) {
    let kinds = [
        ("test: ", Answer::Test),
        ("impossible: ", Answer::Impossible),
        ("not yet: ", Answer::NotYet),
    ];
    let found = kinds
        .iter()
        .find_map(|(start, kind)| Some((*kind, row[2].strip_prefix(start)?.to_owned())));
    found.unwrap_or_else(|| panic!("{}: neither test nor reason: {}", row[0], row[2]))
}

/// Places in the code that a cell names: file and item.
fn places(cell: &str) -> Vec<(&str, &str)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter_map(|text| text.split_once(".rs::")).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Sources, each read once.
#[derive(Default)]
struct Sources(BTreeMap<String, String>);

impl Sources {
    fn of(&mut self, file: &str) -> &str {
        let path = root().join(format!("{file}.rs"));
        let read = || fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}.rs: {e}"));
        self.0.entry(file.to_owned()).or_insert_with(read)
    }

    /// Whether the file has that test: a function with the attribute, or a part of a suite that
    /// a test or a machine runs.
    fn has_test(&mut self, file: &str, item: &str) -> bool {
        let suite = file.starts_with("tests/src/conformance/")
            || file.starts_with("verbs-driver/examples/conversation/");
        let lines: Vec<&str> = self.of(file).lines().map(str::trim).collect();
        let starts = [format!("fn {item}("), format!("fn {item}<")];
        let is_it = |line: &str| starts.iter().any(|start| line.contains(start));
        lines.iter().enumerate().any(|(at, line)| {
            let attribute = lines[at.saturating_sub(3)..at].contains(&"#[test]");
            is_it(line) && (suite || attribute)
        })
    }

    /// Whether the file has that word.
    fn has_item(&mut self, file: &str, item: &str) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        self.of(file)
            .split(|c| !is_word(c))
            .any(|word| word == item)
    }
}

/// Numbers that are there more or less than once.
fn misnumbered(rows: &[[&str; 3]], wanted: &[String]) -> Vec<String> {
    let count = |number: &String| rows.iter().filter(|row| row[0] == number).count();
    let known = |row: &&[&str; 3]| !wanted.iter().any(|number| number == row[0]);
    let not_once = wanted.iter().filter(|number| count(number) != 1).cloned();
    let unknown = rows.iter().filter(known).map(|row| row[0].to_owned());
    not_once.chain(unknown).collect()
}

/// Checks a document; how many entries have which answer.
fn check(name: &str, text: &str, wanted: &[String]) -> BTreeMap<Answer, usize> {
    let rows = rows(text);
    assert_eq!(misnumbered(&rows, wanted), [""; 0], "{name}: not once");
    let mut sources = Sources::default();
    let mut counts = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in &rows {
        let (answer, cell) = answer(row);
        *counts.entry(answer).or_default() += 1;
        let places = places(&cell);
        if row[1].is_empty() || (places.is_empty() && answer != Answer::NotYet) {
            wrong.push(format!("{}: says too little", row[0]));
        }
        for (file, item) in places {
            let there = match answer {
                Answer::Test => sources.has_test(file, item),
                Answer::Impossible | Answer::NotYet => sources.has_item(file, item),
            };
            if !there {
                wrong.push(format!("{}: there is no {file}.rs::{item}", row[0]));
            }
        }
    }
    assert_eq!(wrong, [""; 0], "{name}");
    println!("{name}: {} entries, {counts:?}", rows.len());
    counts
}

#[test]
fn every_fault_and_defect_has_its_test_or_its_reason() {
    let faults: Vec<String> = FAULT_KINDS
        .iter()
        .flat_map(|(kind, numbers)| numbers.iter().map(move |n| format!("{kind}-{n:02}")))
        .collect();
    let defects: Vec<String> = DEFECT_KINDS
        .iter()
        .flat_map(|(kind, last)| (1..=*last).map(move |n| format!("{kind}{n:02}")))
        .collect();
    assert_eq!((faults.len(), defects.len()), (166, 160));
    let of = |counts: &BTreeMap<Answer, usize>| counts.get(&Answer::NotYet).copied();
    let found = [
        of(&check("FAULTS.md", FAULTS, &faults)).unwrap_or(0),
        of(&check("DEFECTS.md", DEFECTS, &defects)).unwrap_or(0),
    ];
    assert_eq!(
        found, NOT_YET,
        "entries without an answer; lower the number when one has it"
    );
}

#[test]
fn what_is_wrong_with_a_map_is_found() {
    let text = "| A-01 | x | test: `a.rs::b` |\n| A-01 | y | impossible: so |\n| A-03 | z | not yet: w |\n";
    let rows = rows(text);
    let wanted = ["A-01".to_owned(), "A-02".to_owned()];
    assert_eq!(misnumbered(&rows, &wanted), ["A-01", "A-02", "A-03"]);
    assert_eq!(answer(&rows[0]), (Answer::Test, "`a.rs::b`".to_owned()));
    assert_eq!(
        places("`a/b.rs::c`, and `d.rs::e`"),
        [("a/b", "c"), ("d", "e")]
    );
    let mut sources = Sources::default();
    let here = "tests/tests/faults/map";
    assert!(sources.has_test(here, "what_is_wrong_with_a_map_is_found"));
    assert!(
        !sources.has_test(here, "misnumbered"),
        "a function, and no test"
    );
    assert!(sources.has_item(here, "misnumbered"));
    assert!(!sources.has_item(here, concat!("misnum", "bere")));
}
