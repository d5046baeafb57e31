//! Rewrites MAC addresses.

use thiserror::Error;

use crate::values::MacAddr;

/// The frame is shorter than the 12 bytes of its MAC addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {0} bytes is too short for MAC addresses")]
pub struct FrameTooShort(pub usize);

/// Sets both addresses.
///
/// # Errors
/// [`FrameTooShort`].
#[inline]
pub fn set_macs(frame: &mut [u8], destination: MacAddr, source: MacAddr) -> Result<(), FrameTooShort> {
    let length = frame.len();
    let macs = frame.first_chunk_mut::<12>().ok_or(FrameTooShort(length))?;
    macs[..6].copy_from_slice(&destination.0);
    macs[6..].copy_from_slice(&source.0);
    Ok(())
}

/// Swaps source and destination.
///
/// # Errors
/// [`FrameTooShort`].
#[inline]
pub fn swap_macs(frame: &mut [u8]) -> Result<(), FrameTooShort> {
    let length = frame.len();
    let macs = frame.first_chunk_mut::<12>().ok_or(FrameTooShort(length))?;
    let (destination, source) = macs.split_at_mut(6);
    destination.swap_with_slice(source);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_set_and_swapped() {
        let mut frame: Vec<u8> = (0..14).collect();
        swap_macs(&mut frame).unwrap();
        assert_eq!(frame, [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13]);
        set_macs(&mut frame, MacAddr([1; 6]), MacAddr([2; 6])).unwrap();
        assert_eq!(frame, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 12, 13]);
    }

    #[test]
    fn short_frames_stay_unchanged() {
        let mut frame = [7; 11];
        assert_eq!(swap_macs(&mut frame), Err(FrameTooShort(11)));
        assert_eq!(set_macs(&mut frame, MacAddr::ZERO, MacAddr::ZERO), Err(FrameTooShort(11)));
        assert_eq!(frame, [7; 11]);
    }
}
