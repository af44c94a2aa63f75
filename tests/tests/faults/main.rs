//! Faults that systems of this kind are known for, one test or more for each: `FAULTS.md` and
//! `DEFECTS.md` say which is for which.

mod anew;
mod cancel;
mod completions;
mod credits;
mod ends;
mod flow;
mod lists;
mod liveness;
mod malformed;
mod map;
mod reconnect;
mod remains;
mod rendezvous;
mod resume;
mod sessions;
mod setup;
mod stop;
mod teardown;
mod users;
