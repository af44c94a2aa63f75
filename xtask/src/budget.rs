//! Instruction counts of fixed scenarios under callgrind, compared with `xtask/budget.toml`.
//!
//! Seconds say more about the machine's other users than about the program; the number of
//! executed instructions is the same in every run of the same program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::ctx::Ctx;
use crate::steps::Outcome;

const FILE: &str = "xtask/budget.toml";

/// Arguments of `cargo xtask budget`.
#[derive(clap::Args)]
pub(crate) struct BudgetArgs {
    /// Write the counted numbers into xtask/budget.toml
    #[arg(long)]
    update: bool,
    /// Count only this scenario (may be repeated)
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
}

/// The budget file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    /// The compiler that the numbers were counted with, as `rustc --version` calls it.
    rustc: String,
    /// How much more, in per cent, is still the same.
    tolerance_percent: f64,
    /// The same for another compiler than `rustc`.
    tolerance_other_rustc_percent: f64,
    #[serde(default, rename = "scenario")]
    scenarios: Vec<Scenario>,
    #[serde(default, rename = "ratio")]
    ratios: Vec<Ratio>,
}

/// One program whose instructions are counted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// What it is called here.
    name: String,
    /// The package that has the program.
    package: String,
    /// The program's target kind and name, as cargo takes them: `["--example", "echo"]`.
    target: [String; 2],
    /// The program's arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Counts only within functions of this name (`*` stands for anything); they must be
    /// `#[inline(never)]`. Without it the whole program counts.
    toggle: Option<String>,
    /// What the count is divided by in reports: messages, say.
    #[serde(default = "one")]
    per: u64,
    /// A number in the JSON object that ends the program's output. The count is divided by it, and
    /// the budget is for one, so that doing more of the same is not over budget.
    each: Option<String>,
    /// The budget; 0 means not counted yet.
    instructions: u64,
}

fn one() -> u64 {
    1
}

/// A bound on what one scenario costs compared with another; unlike a budget it is not updated.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    /// The scenario that is bounded.
    scenario: String,
    /// The one that it is compared with, both divided by their `per`.
    base: String,
    /// The bound.
    at_most: f64,
}

/// The step `budget`: no scenario may execute more instructions than its budget allows.
pub(crate) fn step(ctx: &Ctx) -> Result<Outcome> {
    let budget = load(&ctx.root)?;
    if budget.scenarios.is_empty() {
        return Ok(Outcome::Skipped(format!("no scenario in {FILE}")));
    }
    if !ctx.cmd("valgrind", ["--version"]).succeeds() {
        return Ok(Outcome::Skipped("valgrind is not installed".into()));
    }
    let tolerance = budget.tolerance(&rustc(ctx)?);
    let mut over = Vec::new();
    let mut counts = BTreeMap::new();
    let all: Vec<&Scenario> = budget.scenarios.iter().collect();
    for (scenario, counted) in all.iter().zip(count_all(ctx, &all)?) {
        let verdict = compare(scenario.instructions, counted, tolerance);
        println!("{}", line(scenario, counted, &verdict));
        if matches!(verdict, Verdict::Over(_)) {
            over.push(scenario.name.as_str());
        }
        counts.insert(scenario.name.as_str(), counted);
    }
    let unbalanced = print_ratios(&budget, &counts)?;
    if !unbalanced.is_empty() {
        bail!("too expensive: {}", unbalanced.join(", "));
    }
    if !over.is_empty() {
        bail!(
            "over budget: {}; if meant: `cargo xtask budget --update`",
            over.join(", ")
        );
    }
    Ok(Outcome::Passed(format!(
        "{} scenarios within {tolerance} %, {} ratios",
        budget.scenarios.len(),
        budget.ratios.len()
    )))
}

/// The command `cargo xtask budget`: counts, prints, and writes the numbers down if asked.
pub(crate) fn run(ctx: &Ctx, args: &BudgetArgs) -> Result<()> {
    let budget = load(&ctx.root)?;
    ensure!(!budget.scenarios.is_empty(), "no scenario in {FILE}");
    let unknown = args
        .only
        .iter()
        .find(|name| budget.scenarios.iter().all(|known| known.name != **name));
    ensure!(unknown.is_none(), "no scenario {unknown:?} in {FILE}");
    let rustc = rustc(ctx)?;
    let is_new_rustc = args.update && rustc != budget.rustc;
    ensure!(
        !is_new_rustc || args.only.is_empty(),
        "another rustc: update all scenarios together"
    );
    let mut counts = BTreeMap::new();
    let wanted = |scenario: &&Scenario| args.only.is_empty() || args.only.contains(&scenario.name);
    let some: Vec<&Scenario> = budget.scenarios.iter().filter(wanted).collect();
    for (scenario, counted) in some.iter().zip(count_all(ctx, &some)?) {
        let verdict = compare(scenario.instructions, counted, budget.tolerance(&rustc));
        println!("{}", line(scenario, counted, &verdict));
        counts.insert(scenario.name.as_str(), counted);
    }
    print_ratios(&budget, &counts)?;
    if args.update {
        let path = ctx.root.join(FILE);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, updated(&text, &rustc, &counts))?;
        println!("written to {FILE}");
    }
    Ok(())
}

impl Budget {
    fn tolerance(&self, rustc: &str) -> f64 {
        if rustc == self.rustc {
            return self.tolerance_percent;
        }
        println!(
            "budget of {}, this is {rustc}: a wider tolerance is used",
            self.rustc
        );
        self.tolerance_other_rustc_percent
    }

    fn find(&self, name: &str) -> Result<&Scenario> {
        let found = self.scenarios.iter().find(|known| known.name == name);
        found.with_context(|| format!("no scenario {name:?} in {FILE}"))
    }
}

fn load(root: &Path) -> Result<Budget> {
    let text = fs::read_to_string(root.join(FILE)).context(FILE)?;
    toml::from_str(&text).context(FILE)
}

/// The compiler's version without its hash and date: `rustc 1.95.0`.
fn rustc(ctx: &Ctx) -> Result<String> {
    let text = ctx.cmd("rustc", ["--version"]).output()?;
    Ok(text
        .split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" "))
}

/// Builds the programs of scenarios and counts their instructions: several at once, which their
/// counts do not depend on.
fn count_all(ctx: &Ctx, scenarios: &[&Scenario]) -> Result<Vec<u64>> {
    let mut programs = Vec::new();
    for scenario in scenarios {
        programs.push(build(ctx, scenario)?);
    }
    let next = AtomicUsize::new(0);
    let count = || -> Result<Vec<(usize, u64)>> {
        let mut counted = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(scenario) = scenarios.get(at) else {
                return Ok(counted);
            };
            counted.push((at, count(ctx, scenario, &programs[at])?));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().expect("it does not panic")?);
        }
        anyhow::Ok(all)
    })?;
    counts.sort_unstable();
    Ok(counts.into_iter().map(|(_, counted)| counted).collect())
}

/// Builds a scenario's program and says where it is.
fn build(ctx: &Ctx, scenario: &Scenario) -> Result<PathBuf> {
    let [kind, name] = &scenario.target;
    ctx.cargo([
        "build",
        "--locked",
        "--quiet",
        "--release",
        "--package",
        &scenario.package,
    ])
    .args([kind, name])
    .run()?;
    let mut program = ctx.target_dir.join("release");
    match kind.as_str() {
        "--bin" => {}
        "--example" => program.push("examples"),
        _ => bail!(
            "scenario {}: target must be --bin or --example",
            scenario.name
        ),
    }
    program.push(name);
    Ok(program)
}

/// Counts the instructions of a scenario's program.
fn count(ctx: &Ctx, scenario: &Scenario, program: &Path) -> Result<u64> {
    let out = out_file(ctx, &scenario.name);
    let mut cmd = ctx.cmd("valgrind", ["--quiet", "--tool=callgrind"]);
    cmd = cmd.arg(format!("--callgrind-out-file={}", out.display()));
    if let Some(toggle) = &scenario.toggle {
        cmd = cmd.arg(format!("--toggle-collect={toggle}"));
    }
    // The environment lies on the program's stack and its length shifts the count a little.
    let output = cmd
        .arg(program)
        .args(&scenario.args)
        .only_envs(&["PATH"])
        .finish()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} under callgrind: {stderr}",
        scenario.name
    );
    let text = fs::read_to_string(&out).with_context(|| out.display().to_string())?;
    let counted = total(&text).with_context(|| format!("no total in {}", out.display()))?;
    ensure!(
        counted > 0,
        "{}: nothing counted; is `toggle` right?",
        scenario.name
    );
    let Some(key) = &scenario.each else {
        return Ok(counted);
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let many = number(&text, key).with_context(|| format!("{}: no {key:?}", scenario.name))?;
    Ok(counted / many)
}

/// A number above zero in the JSON object that is the last line of a program's output.
fn number(text: &str, key: &str) -> Option<u64> {
    let object: serde_json::Value = serde_json::from_str(text.lines().last()?).ok()?;
    object.get(key)?.as_u64().filter(|number| *number > 0)
}

/// Where callgrind writes; kept, for `callgrind_annotate`.
fn out_file(ctx: &Ctx, scenario: &str) -> PathBuf {
    ctx.target_dir
        .join(format!("callgrind.out.{}", scenario.replace('/', "-")))
}

/// The total in a callgrind file: all costs that were collected.
fn total(text: &str) -> Option<u64> {
    let line = |name| text.lines().find_map(|line| line.strip_prefix(name));
    line("totals:")
        .or_else(|| line("summary:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// How a count stands to its budget; the number is the difference in per cent.
#[derive(Debug, PartialEq)]
enum Verdict {
    New,
    Within(f64),
    Under(f64),
    Over(f64),
}

fn compare(budget: u64, counted: u64, tolerance_percent: f64) -> Verdict {
    if budget == 0 {
        return Verdict::New;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let percent = (counted as f64 / budget as f64 - 1.0) * 100.0;
    if percent > tolerance_percent {
        Verdict::Over(percent)
    } else if percent < -tolerance_percent {
        Verdict::Under(percent)
    } else {
        Verdict::Within(percent)
    }
}

fn line(scenario: &Scenario, counted: u64, verdict: &Verdict) -> String {
    let verdict = match verdict {
        Verdict::New => "not counted before".to_owned(),
        Verdict::Within(percent) => format!("{percent:+.2} % within budget"),
        Verdict::Under(percent) => format!("{percent:+.2} % better than budget: update it"),
        Verdict::Over(percent) => format!("{percent:+.2} % OVER BUDGET"),
    };
    let each = counted / scenario.per.max(1);
    let per = scenario.each.clone();
    let per = per.unwrap_or_else(|| scenario.per.to_string());
    format!(
        "{:<32} {counted:>12} instructions, {each:>8} each of {per}: {verdict}",
        scenario.name
    )
}

/// Prints the ratios whose scenarios were both counted, and returns the names of those above
/// their bound.
fn print_ratios<'a>(budget: &'a Budget, counts: &BTreeMap<&str, u64>) -> Result<Vec<&'a str>> {
    let mut above = Vec::new();
    for ratio in &budget.ratios {
        let (scenario, base) = (budget.find(&ratio.scenario)?, budget.find(&ratio.base)?);
        let cost = |scenario: &Scenario| {
            let counted = counts.get(scenario.name.as_str())?;
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
            Some(*counted as f64 / scenario.per.max(1) as f64)
        };
        let (Some(cost), Some(base_cost)) = (cost(scenario), cost(base)) else {
            continue;
        };
        let found = cost / base_cost;
        let is_above = found > ratio.at_most;
        let verdict = if is_above { "ABOVE" } else { "within" };
        println!(
            "{:<32} {found:>12.3} times {}: {verdict} the bound of {}",
            ratio.scenario, ratio.base, ratio.at_most
        );
        if is_above {
            above.push(ratio.scenario.as_str());
        }
    }
    Ok(above)
}

/// The budget file's text with new numbers; comments and order stay.
fn updated(text: &str, rustc: &str, counts: &BTreeMap<&str, u64>) -> String {
    let mut current: Option<u64> = None;
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let (key, value) = line.split_once('=').map_or((line, ""), |(key, value)| {
            (key.trim(), value.trim().trim_matches('"'))
        });
        match (key, current) {
            ("name", _) => current = counts.get(value).copied(),
            ("rustc", _) => {
                out.push_str(&format!("rustc = \"{rustc}\"\n"));
                continue;
            }
            ("instructions", Some(counted)) => {
                out.push_str(&format!("instructions = {counted}\n"));
                continue;
            }
            _ => {}
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_read_from_a_callgrind_file() {
        let text = "version: 1\nevents: Ir\n\nfn=main\n1 5\n\ntotals: 700829\n";
        assert_eq!(total(text), Some(700_829));
        assert_eq!(total("summary: 12\n"), Some(12));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn number_is_read_from_the_last_line() {
        let text = "words\n{\"events\": 12, \"none\": 0}\n";
        assert_eq!(number(text, "events"), Some(12));
        assert_eq!(number(text, "none"), None);
        assert_eq!(number(text, "other"), None);
        assert_eq!(number("", "events"), None);
    }

    #[test]
    fn comparison_knows_both_sides_of_the_tolerance() {
        assert_eq!(compare(0, 5, 1.0), Verdict::New);
        assert!(matches!(compare(1000, 1009, 1.0), Verdict::Within(_)));
        assert!(matches!(compare(1000, 1011, 1.0), Verdict::Over(_)));
        assert!(matches!(compare(1000, 989, 1.0), Verdict::Under(_)));
    }

    #[test]
    fn update_touches_only_the_counted_numbers() {
        let text = "# why\nrustc = \"old\"\n[[scenario]]\nname = \"a\"\ninstructions = 1\n\n\
                    [[scenario]]\nname = \"b\"\ninstructions = 2 # note\n";
        let counts = BTreeMap::from([("a", 7)]);
        let expected = "# why\nrustc = \"new\"\n[[scenario]]\nname = \"a\"\ninstructions = 7\n\n\
                        [[scenario]]\nname = \"b\"\ninstructions = 2 # note\n";
        assert_eq!(updated(text, "new", &counts), expected);
    }

    fn budget(at_most: f64) -> Budget {
        let text = format!(
            "rustc = \"\"\ntolerance_percent = 1.0\ntolerance_other_rustc_percent = 1.0\n\
             [[scenario]]\nname = \"one\"\npackage = \"p\"\ntarget = [\"--bin\", \"b\"]\n\
             per = 10\ninstructions = 0\n\
             [[scenario]]\nname = \"many\"\npackage = \"p\"\ntarget = [\"--bin\", \"b\"]\n\
             per = 20\ninstructions = 0\n\
             [[ratio]]\nscenario = \"many\"\nbase = \"one\"\nat_most = {at_most:?}\n"
        );
        toml::from_str(&text).expect("a budget")
    }

    #[test]
    fn ratio_compares_what_each_costs() {
        let counts = BTreeMap::from([("one", 1000), ("many", 2300)]);
        assert!(print_ratios(&budget(1.15), &counts).unwrap().is_empty());
        assert_eq!(print_ratios(&budget(1.14), &counts).unwrap(), ["many"]);
        let counts = BTreeMap::from([("many", 2300)]);
        assert!(print_ratios(&budget(1.0), &counts).unwrap().is_empty());
    }

    #[test]
    fn ratio_of_unknown_scenarios_is_an_error() {
        let mut budget = budget(1.0);
        budget.ratios[0].base = "none".into();
        assert!(print_ratios(&budget, &BTreeMap::new()).is_err());
    }

    #[test]
    fn committed_budget_parses() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("a parent");
        let budget = load(root).expect("xtask/budget.toml");
        print_ratios(&budget, &BTreeMap::new()).expect("ratios of known scenarios");
    }
}
