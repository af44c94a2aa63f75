//! `xio decode`: the frames in a capture.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use xio_decode::{DialectHint, Item, Options};

use crate::output::Output;

/// `xio decode`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  xio decode ping.pcap\n  tcpdump -i lo -U -w - port 7000 | xio decode -\n  \
                  xio decode ping.pcap --follow 2\n  \
                  xio decode ping.pcap --json | jq -c 'select(.type == \"MSG_REQ\") | .session.serial'\n  \
                  echo 00000001 00000000 | xio decode -\n\nReads pcap and pcapng (TCP over IPv4 and \
                  IPv6, RoCE v2 on UDP port 4791), hex text (plain, xxd, hexdump), and bare bytes of \
                  a socket or of frames.\n\nEach line of a frame has an offset in the frame, a name \
                  and a value; a line with !!! says what is wrong, and where. With --json every \
                  frame is an object on a line of its own, with `error` and `offset` if something \
                  is wrong; what the capture holds in all goes to standard error.\n\n`dir` is c2s or s2c. \
                  Where a capture does not show who connected, the side with the smaller port is \
                  taken for the server.\n\nExit status: 0 \
                  when frames were shown, 1 when there are none or the input cannot be read."
)]
pub(crate) struct DecodeArgs {
    /// The capture; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show this stream only
    #[arg(long, value_name = "N")]
    follow: Option<u32>,
    /// Layout of the headers of hex text and bare bytes [default: concluded from them]
    #[arg(long, value_enum)]
    dialect: Option<Dialect>,
    /// Print one JSON object for each frame, one a line, and everything else on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// The two layouts of headers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
enum Dialect {
    /// As between queue pairs
    Rdma,
    /// As between sockets
    Tcp,
}

/// Decodes the input and returns whether a frame was found.
///
/// # Errors
/// When the input cannot be read or is of no known kind, or the result cannot be printed.
pub(crate) fn run(args: &DecodeArgs, out: &Output) -> Result<bool> {
    let is_live = args.file == Path::new("-");
    let input: Box<dyn Read> = if is_live {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.file);
        Box::new(file.with_context(|| format!("cannot open {}", args.file.display()))?)
    };
    let options = Options {
        dialect: match args.dialect {
            None => DialectHint::Guess,
            Some(Dialect::Rdma) => DialectHint::Rdma,
            Some(Dialect::Tcp) => DialectHint::Tcp,
        },
    };
    let mut stdout = BufWriter::new(io::stdout().lock());
    let mut shown = 0_u64;
    let is_frame = |item: &Item| matches!(item.what, xio_decode::What::Frame(_));
    let print = |item: &Item| -> io::Result<()> {
        if args.follow.is_some_and(|stream| stream != item.stream) {
            return Ok(());
        }
        shown += u64::from(is_frame(item));
        if args.json {
            writeln!(stdout, "{}", xio_decode::json(item))?;
        } else {
            write!(stdout, "{}", xio_decode::text(item))?;
        }
        // A person may be watching.
        if is_live { stdout.flush() } else { Ok(()) }
    };
    let summary = xio_decode::decode(input, options, print)
        .with_context(|| args.file.display().to_string())?;
    stdout.flush()?;
    drop(stdout);
    out.text(format_args!("{summary}\n"))?;
    match args.follow {
        _ if summary.frames == 0 => out.text("no frame of the protocol was found\n")?,
        Some(stream) if shown == 0 => {
            out.text(format_args!("none of the frames is of stream {stream}\n"))?;
        }
        _ => {}
    }
    Ok(shown > 0)
}
