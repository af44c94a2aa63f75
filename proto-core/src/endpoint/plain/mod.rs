//! The short way of plain messages: all of it in one slot, no segment lists, no receipts, no
//! application credits, on an RDMA transport connection that is online.
//!
//! Each function here first tests, without changing anything, that all of that holds and that
//! nothing is wrong. If not it says so, and the long way (`work`, `frame`, `receive`, `message`)
//! does the same from the start, with the same result for whatever the short way takes.

mod arrive;
mod command;
mod emit;
mod event;

pub(crate) use command::in_hands;

use crate::wire::{PlainRequest, PlainResponse};

const REQUEST_HEAD: u32 = PlainRequest::LEN as u32;
const RESPONSE_HEAD: u32 = PlainResponse::LEN as u32;
