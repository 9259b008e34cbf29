//! Whatever bytes come, the parser of the Redis protocol does not panic, asks for no more than its
//! bounds, and says the same of them whether they come at once, byte by byte or in pieces of any
//! size.
#![no_main]

#[path = "../../crates/tollgate-server/src/resp/frame.rs"]
#[allow(dead_code)]
mod frame;

use frame::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, FRAME_BYTES_MAX, Frame, Malformed};

type Said = (Vec<Vec<Vec<u8>>>, Option<Malformed>);

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = input.split_first() else { return };
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(whole, read(bytes, 1));
    assert_eq!(whole, read(bytes, usize::from(*size) + 1));
});

/// What the parser says of bytes that come in pieces of this size.
fn read(bytes: &[u8], size: usize) -> Said {
    let (mut commands, mut start, mut frame) = (Vec::new(), 0, Frame::default());
    for end in (0..bytes.len()).step_by(size).map(|at| (at + size).min(bytes.len())) {
        loop {
            let here = &bytes[start..end];
            match frame.read(here) {
                Err(malformed) => return (commands, Some(malformed)),
                Ok(None) => {
                    assert!(here.len() <= FRAME_BYTES_MAX + ARGUMENT_BYTES_MAX + 64);
                    break;
                }
                Ok(Some(length)) => {
                    assert!((1..=here.len()).contains(&length));
                    assert!(frame.len() <= ARGUMENTS_MAX);
                    let arguments: Vec<Vec<u8>> = frame.arguments(here).map(<[u8]>::to_vec).collect();
                    assert!(arguments.iter().all(|argument| argument.len() <= ARGUMENT_BYTES_MAX));
                    commands.push(arguments);
                    start += length;
                    frame.clear();
                }
            }
        }
    }
    (commands, None)
}
