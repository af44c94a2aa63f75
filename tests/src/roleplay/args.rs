//! What the recorded programs were asked to do.
//!
//! A program's arguments are its url, options (`-p` private data, `-m` what a server does with a
//! session, `-o` settings), and a client's steps: `req` and `ow` with the properties of the
//! message, `cancel`, `sleep`, `disc`. Every message carries in its header what the server shall
//! do with it, so the same text tells both sides.

use xio_proto::RemoteMemory;

use crate::golden::{Pattern, Side, Transcript};

/// A program of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it listens, or what it asks for.
    pub url: String,
    /// Private data of its session setup or answer, with the zero that ends it.
    pub private: Vec<u8>,
    /// What a server does with a session.
    pub mode: Mode,
    /// Settings.
    pub settings: Settings,
    /// What a client does, repetitions written out.
    pub steps: Vec<Step>,
    /// Header with which a server answers that does not make it up from the request.
    pub fixed_answer: Option<Vec<u8>>,
}

/// What a server does with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Accepts it.
    Accept,
    /// Rejects it.
    Reject,
    /// Sends it to this url.
    Redirect(String),
}

/// Settings of a program that differ from the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Application credits.
    pub flow_control: bool,
    /// Send queue depth in messages.
    pub send_messages: Option<u16>,
    /// Receive queue depth in messages.
    pub receive_messages: Option<u16>,
    /// Keepalive: seconds to a probe, seconds between looks, looks.
    pub keepalive: Option<(u64, u64, u8)>,
    /// One socket instead of two.
    pub single_stream: bool,
}

/// One thing a client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends a request, and waits for its answer unless told otherwise.
    Request(Ask),
    /// Sends a one-way message, and waits for its outcome unless told otherwise.
    OneWay(Ask),
    /// Cancels the last request.
    Cancel,
    /// Lets time pass.
    Sleep,
    /// Writes into the memory that the last answer named.
    Write,
    /// Reads that memory.
    Read,
    /// Closes the connection.
    Close,
}

/// Properties of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Its application header.
    pub header: Vec<u8>,
    /// Bytes of data.
    pub data: usize,
    /// Bytes of memory offered for the answer.
    pub offer: usize,
    /// Last of a batch.
    pub last: bool,
    /// Immediate completion.
    pub prompt: bool,
    /// The peer shall write the answer.
    pub force_write: bool,
    /// The peer shall read the data.
    pub force_read: bool,
    /// A read receipt is wanted.
    pub receipt: bool,
    /// The next step does not wait for the outcome.
    pub no_wait: bool,
}

/// What the header of a message asks of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Bytes of the answer's header.
    pub header: usize,
    /// Bytes of the answer's data.
    pub data: usize,
    /// Answer later, outside the delivery of the request.
    pub late: bool,
    /// Never answer.
    pub hold: bool,
    /// Close the connection after the answer.
    pub close: bool,
    /// Say in the receipt that the message is not welcome.
    pub reject_receipt: bool,
}

/// Answers longer than this need memory at the requester.
const IN_SLOT: usize = 8192;

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

impl Program {
    /// Reads the arguments of a program.
    ///
    /// # Errors
    ///
    /// An argument of unknown meaning.
    pub fn parse(arguments: &str) -> Result<Self, String> {
        let mut words = arguments.split_whitespace();
        let url = words.next().ok_or("no url")?.to_owned();
        let mut program = Self {
            url,
            private: Vec::new(),
            mode: Mode::Accept,
            settings: Settings::default(),
            steps: Vec::new(),
            fixed_answer: None,
        };
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .ok_or_else(|| format!("{word} without a value"))
            };
            match word {
                "-p" => program.private = [value()?.as_bytes(), &[0]].concat(),
                "-m" => program.mode = Mode::parse(value()?)?,
                "-o" => program.settings.set(value()?)?,
                _ => program.add_step(word)?,
            }
        }
        Ok(program)
    }

    /// The programs of a recording: client, server, second server.
    ///
    /// # Errors
    ///
    /// As [`Program::parse`].
    pub fn of(transcript: &Transcript) -> Result<(Self, Vec<Self>), String> {
        if transcript.client == "direct" {
            return Self::direct(transcript);
        }
        let client = Self::parse(&transcript.client)?;
        let mut servers = vec![Self::parse(&transcript.server)?];
        if let Some(second) = &transcript.second {
            servers.push(Self::parse(second)?);
        }
        Ok((client, servers))
    }

    /// The pair that reaches into each other's memory came without arguments.
    fn direct(transcript: &Transcript) -> Result<(Self, Vec<Self>), String> {
        let section = |side, name| {
            let mut frames = transcript.frames().filter(|(_, frame)| frame.side == side);
            let section = frames.find_map(|(_, frame)| frame.section(name));
            section
                .map(crate::golden::Section::bytes)
                .ok_or_else(|| format!("no {name}"))
        };
        let url = section(Side::Client, "uri")?;
        let mut client = Self::parse(&String::from_utf8_lossy(&url))?;
        let header = b"hello\0".to_vec();
        let ask = Ask {
            header,
            ..Ask::default()
        };
        client.steps = vec![Step::Request(ask), Step::Write, Step::Read, Step::Close];
        let mut server = Self {
            steps: Vec::new(),
            ..client.clone()
        };
        server.fixed_answer = Some(section(Side::Server, "ulp_hdr")?);
        Ok((client, vec![server]))
    }

    fn add_step(&mut self, word: &str) -> Result<(), String> {
        let (kind, properties) = word.split_once(':').unwrap_or((word, ""));
        let mut repeat = 1;
        let step = match kind {
            "req" => Step::Request(Ask::parse(properties, &mut repeat)?),
            "ow" => Step::OneWay(Ask::parse(properties, &mut repeat)?),
            "cancel" => Step::Cancel,
            "sleep" => Step::Sleep,
            "disc" => Step::Close,
            _ => return Err(format!("unknown step {word}")),
        };
        self.steps.extend(std::iter::repeat_n(step, repeat));
        Ok(())
    }

    /// The messages a client sends, in order; requests are marked.
    pub fn messages(&self) -> impl Iterator<Item = (bool, &Ask)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Request(ask) => Some((true, ask)),
            Step::OneWay(ask) => Some((false, ask)),
            _ => None,
        })
    }

    /// Header and length of data of the answer number `count` (from 1) of a server.
    #[must_use]
    pub fn answer(&self, wish: &Wish, count: usize) -> (Vec<u8>, usize) {
        if let Some(fixed) = &self.fixed_answer {
            return (fixed.clone(), 0);
        }
        let mut header = format!("RSP-HDR {count}\0").into_bytes();
        header.resize(wish.header, b'r');
        (header, wish.data)
    }
}

/// The memory that the answer of a server without arguments names.
///
/// # Errors
///
/// A header of another length.
pub fn remote_memory(header: &[u8]) -> Result<RemoteMemory, String> {
    let header: &[u8; 24] = header.try_into().map_err(|_| "no memory in the header")?;
    // The program wrote its own structure, in the order of its machine.
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let key = u32::try_from(word(16)).map_err(|_| "a key of more than 32 bits")?;
    Ok(RemoteMemory {
        addr: word(0),
        len: word(8),
        key,
    })
}

impl Mode {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "reject" => Ok(Self::Reject),
            Some(("redirect", url)) => Ok(Self::Redirect(url.to_owned())),
            _ => Err(format!("unknown mode {text}")),
        }
    }
}

impl Settings {
    fn set(&mut self, text: &str) -> Result<(), String> {
        match text
            .split_once('=')
            .ok_or_else(|| format!("setting {text}"))?
        {
            ("fc", value) => self.flow_control = value == "1",
            ("sndmsgs", value) => self.send_messages = Some(number(value)?),
            ("rcvmsgs", value) => self.receive_messages = Some(number(value)?),
            ("dual", value) => self.single_stream = value == "0",
            // Padding in front of data: this side never sends any.
            ("align", _) => {}
            ("ka", value) => {
                let parts: Vec<&str> = value.split(',').collect();
                let [time, interval, probes] = parts[..] else {
                    return Err(format!("keepalive {value}"));
                };
                self.keepalive = Some((number(time)?, number(interval)?, number(probes)?));
            }
            _ => return Err(format!("unknown setting {text}")),
        }
        Ok(())
    }
}

impl Ask {
    fn parse(properties: &str, repeat: &mut usize) -> Result<Self, String> {
        let mut ask = Self::default();
        let (mut rh, mut rd, mut header_len, mut no_header) = (16usize, 0usize, None, false);
        let mut marks = String::new();
        for property in properties.split(':').filter(|p| !p.is_empty()) {
            let (name, value) = property.split_once('=').unwrap_or((property, ""));
            match name {
                "d" => ask.data = number(value)?,
                "rd" => rd = number(value)?,
                "rh" => rh = number(value)?,
                "h" => header_len = Some(number(value)?),
                "in" => ask.offer = number(value)?,
                "rep" => *repeat = number(value)?,
                "noh" => no_header = true,
                "lib" => ask.last = true,
                "comp" => ask.prompt = true,
                "pw" => ask.force_write = true,
                "pr" => ask.force_read = true,
                "rcpt" => ask.receipt = true,
                "nowait" => ask.no_wait = true,
                // Memory that the program did not register is registered by the driver.
                "nomr" => {}
                "late" | "hold" | "sdisc" | "rrej" => {
                    marks.push(' ');
                    marks.push_str(name);
                }
                _ => return Err(format!("unknown property {property}")),
            }
        }
        if ask.offer == 0 && rd > IN_SLOT {
            ask.offer = rd;
        }
        if !no_header {
            ask.header = format!("rh={rh} rd={rd} rn=1{marks};").into_bytes();
            ask.header
                .resize(header_len.unwrap_or(ask.header.len() + 1) - 1, b'h');
            ask.header.push(0);
        }
        Ok(ask)
    }

    /// The data of the message.
    #[must_use]
    pub fn payload(&self) -> Vec<u8> {
        Pattern::Request.bytes(self.data)
    }

    /// What the server makes of the message's header.
    ///
    /// # Errors
    ///
    /// A header that no client wrote.
    pub fn wish(&self) -> Result<Wish, String> {
        Wish::parse(&self.header)
    }
}

impl Wish {
    /// Reads the header of a message.
    ///
    /// # Errors
    ///
    /// A header that no client wrote.
    pub fn parse(header: &[u8]) -> Result<Self, String> {
        let mut wish = Self {
            header: 16,
            data: 0,
            late: false,
            hold: false,
            close: false,
            reject_receipt: false,
        };
        let text = String::from_utf8_lossy(header);
        let Some((text, _)) = text.split_once(';') else {
            return Ok(wish);
        };
        for word in text.split(' ') {
            match word.split_once('=').unwrap_or((word, "")) {
                ("rh", value) => wish.header = number(value)?,
                ("rd", value) => wish.data = number(value)?,
                ("rn", "1") => {}
                ("late", "") => wish.late = true,
                ("hold", "") => wish.hold = true,
                ("sdisc", "") => wish.close = true,
                ("rrej", "") => wish.reject_receipt = true,
                _ => return Err(format!("unknown wish {word}")),
            }
        }
        Ok(wish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::load_all;

    #[test]
    fn arguments_of_every_recording_are_understood() {
        for transcript in load_all().unwrap() {
            let (client, servers) = Program::of(&transcript).unwrap();
            assert!(!client.steps.is_empty(), "{}", transcript.name);
            assert_eq!(servers.len() > 1, transcript.second.is_some());
            for (_, ask) in client.messages() {
                ask.wish().unwrap();
            }
        }
    }

    #[test]
    fn headers_say_what_the_server_shall_do() {
        let client = Program::parse("u req:h=32:rd=9000:late:rep=2 ow:noh disc").unwrap();
        let asks: Vec<_> = client.messages().collect();
        assert_eq!((client.steps.len(), asks.len()), (4, 3));
        assert_eq!(asks[1].1.header, b"rh=16 rd=9000 rn=1 late;hhhhhhh\0");
        assert_eq!(asks[1].1.offer, 9000);
        let wish = asks[0].1.wish().unwrap();
        assert!(wish.late && wish.data == 9000 && !wish.hold);
        assert_eq!(client.answer(&wish, 12).0, b"RSP-HDR 12\0rrrrr");
        assert!(asks[2].1.header.is_empty() && !asks[2].0);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bad in [
            "u -o x=1",
            "u -m x",
            "u what",
            "u req:x",
            "u req:d=x",
            "u -p",
            "u -o ka=1",
        ] {
            assert!(Program::parse(bad).is_err(), "{bad}");
        }
    }
}
