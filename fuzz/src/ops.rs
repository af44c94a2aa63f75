//! Anything that can happen to two endpoints, in any order: bytes are operations of the alphabet that
//! proptest and the simulator's nodes are driven by too, over the same world, and judged by the same
//! model.

use xio_proto::Config;
use xio_proto::wire::Extensions;
use xio_tests::alphabet::{CONFIG, Op, World};
use xio_tests::hostile::Choices;

/// Steps of one life, at most: a longer input would only be slower.
const STEPS: usize = 400;

/// Runs one life, as the bytes say; returns messages that were delivered.
///
/// Byte 0: bits 0 and 1 clear: nothing is open at the start, as how a connection comes to be is a part
/// of many lives and of few what they are about. Bit 2: application credits. Bit 3: no extensions.
/// Bits 4 to 7 clear: refused commands are looked at closely.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut choices = Choices::new(bytes);
    let options = choices.byte();
    let extensions = if options & 8 == 0 {
        CONFIG.extensions
    } else {
        Extensions::empty()
    };
    let mut world = World::new(&Config {
        flow_control: options & 4 != 0,
        extensions,
        ..CONFIG
    });
    if options & 0xf0 == 0 {
        world = world.comparing();
    }
    if options & 3 != 0 {
        world.open();
    }
    for _ in 0..STEPS {
        if choices.is_empty() {
            break;
        }
        world.step(Op::read(&mut choices));
    }
    world.finish();
    world.delivered()
}
