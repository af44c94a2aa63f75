//! The kernel that the machine boots, and its modules.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::archive::Archive;
use crate::ctx::Ctx;

/// Names another kernel: a Debian package, or a folder with `boot/` and `lib/modules/` in it.
pub(super) const OTHER: &str = "XIO_VM_KERNEL";

/// Debian's name for its present kernel, which depends on the one package that we take.
const META: &str = "linux-image-amd64";

/// Modules that the machine loads, each after those that it depends on. `crc32_generic` is used by
/// `rdma_rxe` under another name, so nothing says that it is needed.
const MODULES: &[&str] = &[
    "crc32_generic",
    "rdma_rxe",
    "rdma_ucm",
    "veth",
    "sch_netem",
    "sch_tbf",
];

/// A kernel that is ready to be booted.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The image for qemu: an ELF file, since emulating the decompressor takes half of a boot.
    pub(super) image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel that is named by the environment, that was used before, or Debian's present one.
    ///
    /// # Errors
    /// When none can be had, or it is not one that we can take apart.
    pub(super) fn find(ctx: &Ctx, cache: &Path) -> Result<Self> {
        if let Some(other) = std::env::var_os(OTHER) {
            let other = PathBuf::from(other);
            let folder = if other.is_dir() {
                other
            } else {
                let name = other
                    .file_stem()
                    .with_context(|| format!("{OTHER} is a path"))?;
                let folder = cache.join(name);
                unpack(ctx, &other, &folder)?;
                folder
            };
            return Self::open(ctx, &folder, cache).context(OTHER);
        }
        let folder = cache.join("debian");
        if !folder.join("boot").is_dir() {
            let package = download(ctx, cache)?;
            unpack(ctx, &package, &folder)?;
            package.parent().map_or(Ok(()), fs::remove_dir_all)?;
        }
        Self::open(ctx, &folder, cache)
    }

    /// The kernel in a folder laid out like a root file system.
    fn open(ctx: &Ctx, folder: &Path, cache: &Path) -> Result<Self> {
        let boot = folder.join("boot");
        let mut versions: Vec<String> = names(&boot)?
            .iter()
            .filter_map(|name| name.strip_prefix("vmlinuz-"))
            .filter(|version| folder.join("lib/modules").join(version).is_dir())
            .map(str::to_owned)
            .collect();
        versions.sort();
        let version = versions
            .pop()
            .with_context(|| format!("no kernel with modules in {}", boot.display()))?;
        let image = cache.join(format!("vmlinux-{version}"));
        if !image.is_file() {
            println!("taking {} out of its bzImage", image.display());
            let packed = fs::read(boot.join(format!("vmlinuz-{version}")))?;
            let payload = payload(&packed)?;
            let partial = partial(&image);
            fs::write(&partial, payload)?;
            let unpacked = ctx
                .cmd("xz", ["--decompress", "--stdout"])
                .stdin(File::open(&partial)?)
                .finish()?;
            ensure!(
                unpacked.status.success() && unpacked.stdout.starts_with(b"\x7fELF"),
                "the kernel's image is not an ELF file packed by xz: {}",
                String::from_utf8_lossy(&unpacked.stderr)
            );
            fs::write(&partial, unpacked.stdout)?;
            fs::rename(&partial, &image)?;
        }
        Ok(Self {
            image,
            modules: folder.join("lib/modules").join(version),
        })
    }

    /// Adds the modules, and a list of them in the order of loading.
    ///
    /// # Errors
    /// When one is missing.
    pub(super) fn add_modules(&self, ctx: &Ctx, archive: &mut Archive) -> Result<()> {
        let mut paths = BTreeMap::new();
        walk(&self.modules, &mut paths)?;
        let mut loaded = Vec::new();
        for module in MODULES {
            add_module(ctx, archive, &paths, module, &mut loaded)?;
        }
        archive.file("modules/order", false, loaded.join("\n").as_bytes());
        Ok(())
    }
}

/// Adds a module after those that it depends on.
fn add_module(
    ctx: &Ctx,
    archive: &mut Archive,
    paths: &BTreeMap<String, PathBuf>,
    module: &str,
    loaded: &mut Vec<String>,
) -> Result<()> {
    if loaded.iter().any(|name| name == module) {
        return Ok(());
    }
    let Some(path) = paths.get(module) else {
        // Debian's cloud flavour has no rdma_rxe.
        bail!("this kernel has no module {module}; Debian's {META} has all that are needed");
    };
    let data = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => {
            let unpacked = ctx.cmd("xz", ["--decompress", "--stdout"]).arg(path);
            unpacked.finish()?.stdout
        }
        _ => fs::read(path)?,
    };
    for needed in dependencies(&data) {
        add_module(ctx, archive, paths, &needed, loaded)?;
    }
    archive.file(&format!("modules/{module}"), false, &data);
    loaded.push(module.to_owned());
    Ok(())
}

/// What a module says that it depends on.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let text = &module[at + KEY.len()..];
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// All modules below a folder, by name.
fn walk(folder: &Path, paths: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            walk(&path, paths)?;
        } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            paths.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// The packed kernel inside a bzImage (Linux's Documentation/arch/x86/boot.rst).
fn payload(image: &[u8]) -> Result<&[u8]> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    ensure!(
        image.get(0x202..0x206) == Some(b"HdrS"),
        "not a bzImage: no boot header"
    );
    let sectors = usize::from(image[0x1f1]);
    let (Some(offset), Some(length)) = (word(0x248), word(0x24c)) else {
        bail!("a bzImage of {} bytes ends in its header", image.len());
    };
    let start = (sectors + 1) * 512 + offset;
    // The last four bytes are the unpacked size, which xz would take for garbage.
    let end = start + length.saturating_sub(4);
    image
        .get(start..end)
        .with_context(|| format!("a bzImage of {} bytes ends before its payload", image.len()))
}

/// Asks apt for the package of Debian's present kernel; it is not installed.
fn download(ctx: &Ctx, cache: &Path) -> Result<PathBuf> {
    let depends = ctx.cmd("apt-cache", ["depends", META]).output()?;
    let package = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .with_context(|| {
            format!("apt knows no {META} (apt-get update?); {OTHER} can name another kernel")
        })?;
    let folder = partial(&cache.join("download"));
    fs::create_dir_all(&folder)?;
    ctx.cmd("apt-get", ["--quiet", "download", package])
        .dir(&folder)
        .run()?;
    let name = names(&folder)?
        .into_iter()
        .find(|name| name.starts_with(package))
        .with_context(|| format!("apt downloaded no {package}"))?;
    Ok(folder.join(name))
}

/// Unpacks a package into a folder, which is there only once that is complete.
fn unpack(ctx: &Ctx, package: &Path, folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let partial = partial(folder);
    if partial.is_dir() {
        fs::remove_dir_all(&partial)?;
    }
    ctx.cmd("dpkg-deb", ["--extract"])
        .arg(package)
        .arg(&partial)
        .run()?;
    let renamed = fs::rename(&partial, folder);
    if renamed.is_err() && folder.is_dir() {
        // Another run was first.
        return Ok(fs::remove_dir_all(&partial)?);
    }
    Ok(renamed?)
}

/// Where something is made that is to be complete once it is there: each run has a place of its
/// own, so that two may begin at a time.
fn partial(of: &Path) -> PathBuf {
    of.with_extension(format!("partial-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_found_behind_the_setup_sectors() {
        let mut image = vec![0; 512 * 3 + 100];
        image[0x1f1] = 2;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&10_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&9_u32.to_le_bytes());
        image[512 * 3 + 10..][..5].copy_from_slice(b"12345");
        assert_eq!(payload(&image).unwrap(), b"12345");
        image[0x24c..0x250].copy_from_slice(&1000_u32.to_le_bytes());
        assert!(payload(&image).is_err());
        assert!(payload(b"\x7fELF").is_err());
    }

    #[test]
    fn dependencies_are_read_from_a_module() {
        let module = b"\x7fELF..\0license=GPL\0depends=ib-core,udp_tunnel\0name=x\0";
        assert_eq!(dependencies(module), ["ib_core", "udp_tunnel"]);
        assert!(dependencies(b"\0depends=\0name=x\0").is_empty());
        assert!(dependencies(b"name=x").is_empty());
    }
}
