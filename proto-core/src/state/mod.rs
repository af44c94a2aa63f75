//! The declared state tables: the only place where a state may change, and the source of the dump.
//! PROTOCOL.md 2, 7, 8 and 9 describe them.
//!
//! A machine is a list of states, inputs and actions, and rows `State + Input => Next / Action`.
//! Every pair without a row leaves the state as it is and is counted as ignored, so every pair
//! has a defined result. The endpoint classifies what happened into an input, looks the row up,
//! stores the next state and runs the action.

use core::fmt;

pub(crate) mod connection;
pub(crate) mod nexus;
pub(crate) mod session;
pub(crate) mod socket;
pub(crate) mod task;

/// A machine's name, its state and input names, and its declared rows: what a dump is made from.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Machine {
    /// `nexus`, `session`, `connection`, `task` or `socket`.
    pub name: &'static str,
    /// Names of the states, by number.
    pub states: &'static [&'static str],
    /// Names of the inputs, by number.
    pub inputs: &'static [&'static str],
    /// The declared rows.
    pub rows: &'static [Row],
}

/// One declared transition.
#[derive(Copy, Clone, Hash, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the state it starts from.
    pub from: u8,
    /// Number of the input.
    pub input: u8,
    /// Number of the state it leads to.
    pub next: u8,
    /// What the endpoint does.
    pub action: &'static str,
    /// Why nothing ever takes the row, if so.
    pub unreachable: Option<&'static str>,
}

/// The five machines.
pub const MACHINES: [Machine; 5] = [
    nexus::MACHINE,
    session::MACHINE,
    connection::MACHINE,
    task::MACHINE,
    socket::MACHINE,
];

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "machine {}", self.name)?;
        for (number, state) in self.states.iter().enumerate() {
            writeln!(f, "  {state}")?;
            for row in self
                .rows
                .iter()
                .filter(|row| usize::from(row.from) == number)
            {
                let input = self.inputs[usize::from(row.input)];
                let next = self.states[usize::from(row.next)];
                write!(f, "    {input:<18} => {next:<14} / {}", row.action)?;
                if let Some(why) = row.unreachable {
                    write!(f, "  (unreachable: {why})")?;
                }
                writeln!(f)?;
            }
            write!(f, "    ignored:")?;
            for (input, name) in self.inputs.iter().enumerate() {
                let declared =
                    |row: &Row| usize::from(row.from) == number && usize::from(row.input) == input;
                if !self.rows.iter().any(declared) {
                    write!(f, " {name}")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Writes the machines as one Graphviz document.
#[derive(Copy, Clone, Hash, Debug)]
pub struct Graphviz<'a>(pub &'a [Machine]);

impl fmt::Display for Graphviz<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "digraph xio {{")?;
        writeln!(f, "  rankdir=LR; node [shape=box, style=rounded];")?;
        for machine in self.0 {
            let name = machine.name;
            writeln!(f, "  subgraph cluster_{name} {{\n    label=\"{name}\";")?;
            for state in machine.states {
                writeln!(f, "    {name}_{state} [label=\"{state}\"];")?;
            }
            for row in machine.rows {
                let from = machine.states[usize::from(row.from)];
                let next = machine.states[usize::from(row.next)];
                let input = machine.inputs[usize::from(row.input)];
                let style = if row.unreachable.is_some() {
                    ", style=dashed"
                } else {
                    ""
                };
                writeln!(
                    f,
                    "    {name}_{from} -> {name}_{next} [label=\"{input} / {}\"{style}];",
                    row.action
                )?;
            }
            writeln!(f, "  }}")?;
        }
        writeln!(f, "}}")
    }
}

/// Declares one machine: enums `State`, `Input`, `Action`, the lookup and the rows for the dump.
macro_rules! machine {
    (
        $name:literal
        states { $($(#[$sdoc:meta])* $state:ident),+ $(,)? }
        inputs { $($(#[$idoc:meta])* $input:ident),+ $(,)? }
        actions { $($(#[$adoc:meta])* $action:ident),+ $(,)? }
        rows { $($from:ident + $on:ident => $next:ident / $act:ident $(, unreachable $why:literal)?;)+ }
    ) => {
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub(crate) enum State { $($(#[$sdoc])* $state),+ }

        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub(crate) enum Input { $($(#[$idoc])* $input),+ }

        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub(crate) enum Action { Ignored, $($(#[$adoc])* $action),+ }

        const STATES: &[&str] = &[$(stringify!($state)),+];
        const INPUTS: &[&str] = &[$(stringify!($input)),+];

        const TABLE: [[(State, Action); INPUTS.len()]; STATES.len()] = {
            const ALL: [State; STATES.len()] = [$(State::$state),+];
            let mut table = [[(State::Vacant, Action::Ignored); INPUTS.len()]; STATES.len()];
            let mut s = 0;
            while s < STATES.len() {
                let mut i = 0;
                while i < INPUTS.len() {
                    table[s][i].0 = ALL[s];
                    i += 1;
                }
                s += 1;
            }
            $(
                assert!(
                    matches!(table[State::$from as usize][Input::$on as usize].1, Action::Ignored),
                    concat!("declared twice: ", stringify!($from), " + ", stringify!($on))
                );
                table[State::$from as usize][Input::$on as usize] =
                    (State::$next, Action::$act);
            )+
            table
        };

        /// What the endpoint must do, and the state that follows.
        #[inline]
        pub(crate) const fn lookup(state: State, input: Input) -> (State, Action) {
            TABLE[state as usize][input as usize]
        }

        pub(crate) const MACHINE: super::Machine = super::Machine {
            name: $name,
            states: STATES,
            inputs: INPUTS,
            rows: &[$(super::Row {
                from: State::$from as u8,
                input: Input::$on as u8,
                next: State::$next as u8,
                action: stringify!($act),
                unreachable: super::machine!(@why $($why)?),
            }),+],
        };
    };
    (@why) => { None };
    (@why $why:literal) => { Some($why) };
}
pub(crate) use machine;
