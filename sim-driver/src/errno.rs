//! Error numbers as the verbs and sockets of Linux give them.

/// Input or output error: the device is gone.
pub const EIO: i32 = 5;
/// No room.
pub const ENOMEM: i32 = 12;
/// No such device.
pub const ENODEV: i32 = 19;
/// The call makes no sense now.
pub const EINVAL: i32 = 22;
/// Too many open files.
pub const EMFILE: i32 = 24;
/// Nobody reads the other end.
pub const EPIPE: i32 = 32;
/// The port is taken.
pub const EADDRINUSE: i32 = 98;
/// The connection was reset.
pub const ECONNRESET: i32 = 104;
/// Nobody answered in time.
pub const ETIMEDOUT: i32 = 110;
/// Nobody listens there.
pub const ECONNREFUSED: i32 = 111;
/// The host cannot be reached.
pub const EHOSTUNREACH: i32 = 113;
