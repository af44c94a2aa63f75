//! The short way of plain messages: all of it in one slot, no segment lists, no receipts, no
//! application credits, on an RDMA transport connection that is online.
//!
//! Each function here first tests, without changing anything, that all of that holds and that
//! nothing is wrong. If not it says so, and the long way (`work`, `frame`, `receive`, `message`)
//! does the same from the start, with the same result for whatever the short way takes.

mod arrive;
mod command;
mod emit;

pub(crate) use command::in_hands;

use crate::entries::TaskFlags;
use crate::wire::{Framing, Op, request_head_len, response_head_len};

const REQUEST_HEAD: u32 = request_head_len(Framing::Rdma, 0, 0) as u32;
const RESPONSE_HEAD: u32 = response_head_len(Framing::Rdma, Op::Send, 0) as u32;

/// Flags that a plain message must have so or so.
const MANNER: TaskFlags = TaskFlags::PLAIN
    .union(TaskFlags::INCOMING)
    .union(TaskFlags::RECEIPT)
    .union(TaskFlags::RECEIPT_NOW)
    .union(TaskFlags::FORCE_WRITE)
    .union(TaskFlags::RESPONSE)
    .union(TaskFlags::PROMPT)
    .union(TaskFlags::SILENT);
const REQUEST: TaskFlags = TaskFlags::PLAIN;
const RESPONSE: TaskFlags = TaskFlags::PLAIN
    .union(TaskFlags::INCOMING)
    .union(TaskFlags::RESPONSE);
