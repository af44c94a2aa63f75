//! The archive that a kernel unpacks as its first file system: cpio, format `newc`.
//!
//! Written here and not by a program, because it must have a device node in it (the console), and
//! only root can make one as a file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::ctx::Ctx;

/// Kinds of entries, as `stat` has them in its mode.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// An archive under construction.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<String>,
}

impl Archive {
    /// A directory and those above it. A path that is there already stays as it is, here and below.
    pub(super) fn directory(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        if !path.is_empty() && self.paths.insert(path.to_owned()) {
            self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
        }
    }

    /// A file.
    pub(super) fn file(&mut self, path: &str, is_executable: bool, data: &[u8]) {
        let mode = if is_executable { 0o755 } else { 0o644 };
        self.add(path, REGULAR | mode, (0, 0), data);
    }

    /// A symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.add(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// A character device.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.add(path, CHARACTER | 0o600, (major, minor), &[]);
    }

    /// A file of the host.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn host_file(&mut self, path: &str, host: &Path) -> Result<()> {
        let data = fs::read(host).with_context(|| host.display().to_string())?;
        let mode = fs::metadata(host)?.permissions().mode();
        self.file(path, mode & 0o100 != 0, &data);
        Ok(())
    }

    /// A program of the host (or a library), with the libraries that it needs.
    ///
    /// # Errors
    /// When a file cannot be read, or a library is missing.
    pub(super) fn program(&mut self, ctx: &Ctx, path: &str, host: &Path) -> Result<()> {
        self.host_file(path, host)?;
        // Fails for what is linked statically, which is then all that is needed.
        let found = ctx.cmd("ldd", []).arg(host).finish()?;
        if !found.status.success() {
            return Ok(());
        }
        for library in libraries(&String::from_utf8_lossy(&found.stdout))
            .with_context(|| host.display().to_string())?
        {
            self.host_file(&library, Path::new(&library))?;
        }
        Ok(())
    }

    /// The archive's bytes, padded so that another may follow.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        pad(&mut self.bytes, 512);
        self.bytes
    }

    fn add(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        if self.paths.insert(path.to_owned()) {
            self.entry(path, mode, device, data);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), data: &[u8]) {
        let inode = u32::try_from(self.paths.len()).expect("fewer files than that");
        let size = u32::try_from(data.len()).expect("a file of less than 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a path is short");
        // magic; inode, mode, uid, gid, links, time, size, device, special device, name, check.
        self.bytes.extend_from_slice(b"070701");
        for field in [
            inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0,
        ] {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        pad(&mut self.bytes, 4);
        self.bytes.extend_from_slice(data);
        pad(&mut self.bytes, 4);
    }
}

fn pad(bytes: &mut Vec<u8>, unit: usize) {
    bytes.resize(bytes.len().next_multiple_of(unit), 0);
}

/// Paths of libraries (and the loader) in what `ldd` prints.
fn libraries(text: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.contains("not found") {
            anyhow::bail!("a library is missing: {line}");
        }
        let place = line.split_once("=> ").map_or(line, |(_, place)| place);
        if let Some(path) = place.split_whitespace().next()
            && path.starts_with('/')
        {
            found.push(path.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_newc_has_them() {
        let mut archive = Archive::default();
        archive.file("a/b", true, b"hello");
        archive.device("dev/console", 5, 1);
        archive.file("a/b", true, b"again");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(bytes.len() % 512, 0);
        // a, a/b, dev, dev/console, the trailer: what was there already is not added again.
        assert_eq!(text.matches("070701").count(), 5);
        assert!(!text.contains("again"));
        let file = text.find("a/b\0").expect("the file");
        let header = &text[file - 110..file];
        assert_eq!(&header[14..22], "000081ed", "mode");
        assert_eq!(&header[54..62], "00000005", "size");
        assert_eq!(&header[94..102], "00000004", "size of the name");
        // 110 + 4 bytes, padded to 116; data of 5, padded to 8.
        assert_eq!(&bytes[file + 6..file + 14], b"hello\0\0\0");
        assert_eq!(&bytes[file + 14..file + 20], b"070701");
        let node = text.find("dev/console\0").expect("the node");
        assert_eq!(&text[node - 110..][78..94], "0000000500000001");
    }

    #[test]
    fn libraries_are_read_from_ldd() {
        let text =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(libraries(text).unwrap(), ["/lib/libc.so.6", "/lib64/ld.so"]);
        assert!(libraries("\tlibx.so => not found\n").is_err());
    }
}
