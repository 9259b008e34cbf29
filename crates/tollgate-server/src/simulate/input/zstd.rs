//! Zstandard with any number of frames, as `zstd` writes and `cat` joins them.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Decompresses all frames of a stream.
pub(super) struct ZstdReader<R> {
    compressed: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    pub(super) fn new(compressed: R) -> Self {
        Self { compressed, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Begins the next frame, or skips one that carries no data.
    fn begin_frame(&mut self) -> io::Result<()> {
        match self.decoder.init(&mut self.compressed) {
            Ok(()) => self.in_frame = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                io::copy(&mut self.compressed.by_ref().take(length.into()), &mut io::sink())?;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                if self.compressed.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.begin_frame()?;
            } else if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            } else if self.decoder.is_finished() {
                self.in_frame = false;
            } else {
                let blocks = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.compressed, blocks).map_err(io::Error::other)?;
            }
        }
    }
}
