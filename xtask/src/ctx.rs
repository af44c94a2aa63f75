//! What every step needs to know: where the project is and what its packages are.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

use crate::exec::Cmd;

/// Packages that a plain `cargo build` leaves out, but that a Rust toolchain is enough for.
const EXTRA: &[&str] = &["xio-fuzz"];

/// A package of the workspace, as `cargo metadata` tells it.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// Its name in Cargo.toml.
    pub(crate) name: String,
    /// Whether a plain `cargo build` builds it.
    pub(crate) is_default: bool,
    /// Its features but for `default`.
    pub(crate) features: Vec<String>,
    /// Workspace packages that it depends on, development and build dependencies left out.
    pub(crate) normal_deps: Vec<String>,
}

/// One run of xtask.
#[derive(Debug)]
pub(crate) struct Ctx {
    /// The folder of the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// Where cargo builds.
    pub(crate) target_dir: PathBuf,
    /// Whether a skipped step is a failure.
    pub(crate) is_strict: bool,
    /// Seeds that the simulator step runs.
    pub(crate) seeds: u32,
    /// The workspace's packages.
    pub(crate) packages: Vec<Package>,
}

impl Ctx {
    /// Reads the workspace's metadata.
    ///
    /// # Errors
    /// When cargo cannot be run or its answer is not understood.
    pub(crate) fn new(is_strict: bool, seeds: u32) -> Result<Self> {
        // What cargo says now, not what it said at the build: two clones may share a target folder.
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&package)
            .parent()
            .context("xtask lies in a folder of the workspace")?
            .to_path_buf();
        let text = Cmd::cargo(&root, ["metadata", "--no-deps", "--format-version=1"]).output()?;
        let metadata: Value = serde_json::from_str(&text).context("cargo metadata is JSON")?;
        let target_dir = metadata["target_directory"]
            .as_str()
            .context("target_directory")?;
        Ok(Self {
            target_dir: PathBuf::from(target_dir),
            packages: packages(&metadata)?,
            root,
            is_strict,
            seeds,
        })
    }

    /// A cargo command in the project's root, with CI=true when strict.
    pub(crate) fn cargo<const N: usize>(&self, args: [&str; N]) -> Cmd {
        self.ci(Cmd::cargo(&self.root, args))
    }

    /// Builds and runs an example of the tests, optimised, with arguments of its own.
    pub(crate) fn example(&self, name: &str, args: &[&str]) -> Cmd {
        self.cargo(["run", "--locked", "--release", "--package", "xio-tests"])
            .args(["--example", name, "--"])
            .args(args)
    }

    /// Any other command in the project's root, with CI=true when strict.
    pub(crate) fn cmd<const N: usize>(&self, program: impl AsRef<Path>, args: [&str; N]) -> Cmd {
        self.ci(Cmd::new(&self.root, program.as_ref()).args(args))
    }

    /// Lets a build of the verbs bindings find the libclang that they can be made with: those of
    /// later versions make names that are none in Rust.
    pub(crate) fn verbs_env(&self, cmd: Cmd) -> Cmd {
        let folder = "/usr/lib/llvm-14/lib";
        if std::env::var_os("LIBCLANG_PATH").is_none() && Path::new(folder).is_dir() {
            cmd.env("LIBCLANG_PATH", folder)
        } else {
            cmd
        }
    }

    /// A strict run starts from nothing and builds once: what makes a second build faster would
    /// only fill the disk.
    fn ci(&self, cmd: Cmd) -> Cmd {
        if self.is_strict {
            cmd.env("CI", "true").env("CARGO_INCREMENTAL", "0")
        } else {
            cmd
        }
    }

    /// The package of that name.
    pub(crate) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// The packages that can be built here for certain: those are linted, documented and tested.
    pub(crate) fn checked_packages(&self) -> impl Iterator<Item = &Package> {
        let is_checked = |package: &&Package| {
            package.is_default || EXTRA.iter().any(|name| *name == package.name)
        };
        self.packages.iter().filter(is_checked)
    }
}

fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let list = metadata["packages"].as_array().context("packages")?;
    let defaults = metadata["workspace_default_members"]
        .as_array()
        .context("default members")?;
    let names: Vec<&str> = list
        .iter()
        .filter_map(|package| package["name"].as_str())
        .collect();
    list.iter()
        .map(|package| one_package(package, defaults, &names))
        .collect()
}

fn one_package(package: &Value, defaults: &[Value], names: &[&str]) -> Result<Package> {
    let name = package["name"].as_str().context("package name")?.to_owned();
    let features = package["features"]
        .as_object()
        .ok_or_else(|| anyhow!("features of {name}"))?;
    let deps = package["dependencies"].as_array().context("dependencies")?;
    Ok(Package {
        is_default: defaults.contains(&package["id"]),
        features: features
            .keys()
            .filter(|key| *key != "default")
            .cloned()
            .collect(),
        normal_deps: deps
            .iter()
            .filter(|dep| dep["kind"].is_null())
            .filter_map(|dep| dep["name"].as_str())
            .filter(|dep| names.contains(dep))
            .map(str::to_owned)
            .collect(),
        name,
    })
}
