//! Golden vectors: what real peers of this protocol put on the wire.
//!
//! `golden/*.vec` holds one file per recorded conversation. A file begins with what was run
//! (dialect, stream mode, the arguments of both programs) and goes on with one line per record
//! in time order: connection manager events, queue pairs, sockets, frames, one-sided transfers.
//! The lines of a frame are its sections; `layouts.vec` names the fields of each, so a frame is
//! at the same time its bytes and the annotation of its bytes:
//!
//! ```text
//! 13 0.591703 frame client MSG_REQ qp=17 flags=I chain=0 gather=114+16 receives=289
//!   tlv 58494f50 00000012 0000000000000062
//!   ...
//!   ulp_hdr "rh=16 rd=32 rn=1;\x00"
//!   data c0000000c0000001c0000002c0000003
//! ```
//!
//! A section marked `~` travels on the data socket, one marked `+` behind the frame on a single
//! socket. Long payload that follows a [`Pattern`] is written `gen:<pattern>:<len>:<digest>`.
//!
//! The files are made by [`import()`] (`cargo run -p xio-tests --example golden-import`), which
//! checks every fact that the recordings state twice.

mod bytes;
mod examples;
mod files;
mod frame;
mod import;
mod layout;
mod model;
mod pairs;
mod payload;
mod read;
mod roles;
mod table;
mod write;

pub use bytes::{hex, quote, unhex, unquote};
pub use examples::Example;
pub use files::{NAMES, examples, folder, layouts, load, load_all};
pub use frame::{Named, bytes_at, named};
pub use import::import;
pub use layout::{FieldDef, Layout, Layouts};
pub use model::*;
pub use payload::{Pattern, Payload, WRITTEN_OUT, digest};
pub use roles::{Turn, turn};
pub use table::{counts, table};
