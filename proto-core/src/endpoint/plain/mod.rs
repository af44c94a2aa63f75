//! The short way of plain messages: all of it in one slot, no segment lists, no receipts, no
//! application credits, on a transport connection that is online. What differs between the dialects
//! is chosen by a type, [`Headers`](crate::wire::Headers).
//!
//! Each function here first tests, without changing anything, that all of that holds and that
//! nothing is wrong. If not it says so, and the long way (`work`, `frame`, `receive`, `message`)
//! does the same from the start, with the same result for whatever the short way takes.

mod arrive;
mod command;
mod emit;
mod event;

pub(crate) use command::in_hands;

use crate::entries::Nexus;
use crate::wire::{Dialect, Framing, Headers, OnRdma, OnStream, PlainRequest, PlainResponse};

/// Bytes up to the application header of a request, in both dialects.
const REQUEST_HEAD: u32 = PlainRequest::<OnRdma>::LEN as u32;
const _: () = assert!(REQUEST_HEAD == PlainRequest::<OnStream>::LEN as u32);

/// The same of a response, in the dialect where it is longer.
const RESPONSE_HEAD: u32 = PlainResponse::<OnRdma>::LEN as u32;
const _: () = assert!(RESPONSE_HEAD >= PlainResponse::<OnStream>::LEN as u32);

/// How frames of a transport connection travel, as far as its dialect leaves that open.
#[inline(always)]
fn framing<D: Headers>(nexus: &Nexus) -> Framing {
    match D::DIALECT {
        Dialect::Rdma => Framing::Rdma,
        Dialect::Tcp => nexus.framing,
    }
}

/// Whether a dialect numbers its frames and counts receives.
const fn counts_receives<D: Headers>() -> bool {
    matches!(D::DIALECT, Dialect::Rdma)
}
