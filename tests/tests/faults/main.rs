//! Faults that systems of this kind are known for, one test or more for each: `FAULTS.md` and
//! `DEFECTS.md` say which is for which.

mod map;
mod teardown;
mod users;
