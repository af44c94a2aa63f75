//! File descriptors: one that stands for several, and a bell.

use std::io::{self, Error};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Makes reading a descriptor fail where it would wait.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), i32> {
    let code = |_| Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    // SAFETY: numbers only; a descriptor that is not open is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(code(()));
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(code(()));
    }
    Ok(())
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: just made by the caller, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Descriptors, of which one is waited for. Readable itself when one of them is.
#[derive(Debug)]
pub(crate) struct Group(OwnedFd);

impl Group {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: numbers only.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Adds a descriptor; what is ready is told by the bits of `mark`.
    pub(crate) fn add(&self, fd: RawFd, mark: u32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: u64::from(mark),
        };
        // SAFETY: the event lives as long as the call.
        let status =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if status < 0 {
            Err(Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Takes a descriptor out.
    pub(crate) fn remove(&self, fd: RawFd) {
        // SAFETY: the event may be null; one that is not there is an error without consequence.
        unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                fd,
                std::ptr::null_mut(),
            );
        }
    }

    /// Waits, at most so long (`None`: until something comes), and returns the marks of all that
    /// are ready.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<u32> {
        #[cfg(test)]
        self.watched(timeout)?;
        self.ready(timeout)
    }

    /// In tests things may come right before it sleeps, and while it does.
    #[cfg(test)]
    fn watched(&self, timeout: Option<Duration>) -> io::Result<()> {
        crate::fake::step("epoll_wait", 0);
        if timeout != Some(Duration::ZERO) && self.ready(Some(Duration::ZERO))? == 0 {
            crate::fake::step("asleep", 0);
            if self.ready(Some(Duration::ZERO))? == 0 {
                crate::fake::step("still asleep", 0);
            }
        }
        Ok(())
    }

    fn ready(&self, timeout: Option<Duration>) -> io::Result<u32> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // Rounded up, so that nothing wakes before its time again and again.
        let timeout = timeout.map_or(-1, |t| {
            i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: so many events have room.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                timeout,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let error = Error::last_os_error();
            // A signal: as if nothing had come.
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(0)
            } else {
                Err(error)
            };
        };
        let marks = events[..count].iter().map(|event| event.u64 as u32);
        Ok(marks.fold(0, |all, mark| all | mark))
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Group {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    /// A silent one.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: numbers only.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are there. It fails only when it rang too often already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it silent again.
    pub(crate) fn quiet(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes have room. It fails only when it did not ring.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_tells_who_is_ready() {
        let (group, one, two) = (
            Group::new().unwrap(),
            Bell::new().unwrap(),
            Bell::new().unwrap(),
        );
        group.add(one.as_raw_fd(), 1).unwrap();
        group.add(two.as_raw_fd(), 2).unwrap();
        let now = Some(Duration::ZERO);
        assert_eq!(group.wait(now).unwrap(), 0);
        two.ring();
        assert_eq!(group.wait(None).unwrap(), 2);
        one.ring();
        assert_eq!(group.wait(None).unwrap(), 3);
        two.quiet();
        assert_eq!(group.wait(now).unwrap(), 1);
        group.remove(one.as_raw_fd());
        assert_eq!(group.wait(now).unwrap(), 0);
    }
}
