//! TCP segments to bytes in order.

mod reassembly;

pub(crate) use reassembly::{Reassembly, Taken};
