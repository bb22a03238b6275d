//! The decoders against other packers that follow the format, against our own, and against damage.

use super::{Compression, Origin, Packer, compress, decompress};
use proptest::prelude::*;

const SECTOR: usize = 4096;
const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

/// Packs as btrfs does, padded to the sector.
fn pack(algorithm: Compression, plain: &[u8]) -> Vec<u8> {
    let mut packed = match algorithm {
        Compression::Zlib => pack_zlib(plain),
        Compression::Lzo => pack_lzo(plain),
        Compression::Zstd => zstd::bulk::compress(plain, 3).unwrap(),
        Compression::None => plain.to_vec(),
    };
    packed.resize(packed.len().next_multiple_of(SECTOR), 0);
    packed
}

fn pack_zlib(plain: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn pack_lzo(plain: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; 4];
    for sector in plain.chunks(SECTOR) {
        let left = SECTOR - packed.len() % SECTOR;
        if left < 4 {
            packed.resize(packed.len() + left, 0);
        }
        let segment = lzokay::compress::compress(sector).unwrap();
        packed.extend(u32::try_from(segment.len()).unwrap().to_le_bytes());
        packed.extend(segment);
    }
    let total = u32::try_from(packed.len()).unwrap();
    packed[..4].copy_from_slice(&total.to_le_bytes());
    packed
}

/// A zstd frame that does not say how much it holds.
fn pack_stream(plain: &[u8], window_log: u32) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(window_log).unwrap();
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn unpack(algorithm: Compression, packed: &[u8], bytes: usize) -> Result<Vec<u8>, String> {
    let mut out = vec![0xAA; bytes];
    decompress(algorithm, Origin::Disk, packed, &mut out).map_err(|r| r.to_string())?;
    Ok(out)
}

/// Bytes with some repetition, and some without.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<u8>(), 1..600_usize).prop_map(|(byte, len)| vec![byte; len]);
    let noise = prop::collection::vec(any::<u8>(), 1..900);
    let piece = prop_oneof![run, noise];
    prop::collection::vec(piece, 1..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_packed_comes_back_followed_by_zeroes(text in texts(), more in 0..5000_usize) {
        for algorithm in ALL {
            let mut want = text.clone();
            want.resize(text.len() + more, 0);
            prop_assert_eq!(unpack(algorithm, &pack(algorithm, &text), want.len()).unwrap(), want);
        }
    }

    #[test]
    fn a_prefix_comes_back_on_its_own(text in texts(), part in 0.0..1.0_f64) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss,
                 clippy::cast_precision_loss, reason = "a share of a small length")]
        let bytes = (text.len() as f64 * part) as usize;
        for algorithm in ALL {
            let prefix = unpack(algorithm, &pack(algorithm, &text), bytes).unwrap();
            prop_assert_eq!(&prefix, &text[..bytes]);
        }
    }

    #[test]
    fn damage_is_an_answer_not_a_panic(
        text in texts(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        origin in prop_oneof![Just(Origin::Disk), Just(Origin::Inline)],
    ) {
        for algorithm in ALL {
            let mut packed = pack(algorithm, &text);
            for (at, byte) in &flips {
                let at = at.index(packed.len());
                packed[at] = *byte;
            }
            packed.truncate(cut.index(packed.len() + 1));
            let mut out = vec![0; text.len()];
            let _answer = decompress(algorithm, origin, &packed, &mut out);
        }
    }

    #[test]
    fn noise_is_an_answer_not_a_panic(noise in prop::collection::vec(any::<u8>(), 0..9000)) {
        for algorithm in ALL {
            for origin in [Origin::Disk, Origin::Inline] {
                let _answer = decompress(algorithm, origin, &noise, &mut vec![0; 70_000]);
            }
        }
    }
}

#[test]
fn truncated_streams_are_refused() {
    let noise: Vec<u8> = (0..60_000_u32).map(|n| n.wrapping_mul(n).to_le_bytes()[1]).collect();
    for algorithm in ALL {
        let mut packed = pack(algorithm, &noise);
        packed.truncate(packed.len() / 2);
        let error = unpack(algorithm, &packed, noise.len()).unwrap_err();
        assert!(error.contains("have"), "{algorithm:?}: {error}");
    }
}

#[test]
fn a_frame_without_content_size_is_read_as_well() {
    let text = b"butternut ".repeat(9000);
    let packed = pack_stream(&text, 17);
    assert_eq!(unpack(Compression::Zstd, &packed, text.len()).unwrap(), text);
}

#[test]
fn a_frame_that_looks_back_too_far_is_refused() {
    let packed = pack_stream(&b"butternut ".repeat(200_000), 20);
    let error = unpack(Compression::Zstd, &packed, SECTOR).unwrap_err();
    assert!(error.starts_with("zstd frame: have "), "{error}");
}

#[test]
fn an_lzo_segment_header_never_crosses_a_sector() {
    // Segments of noise are longer than a sector, so headers drift through all offsets.
    let noise: Vec<u8> =
        (0..131_072_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    assert_eq!(
        unpack(Compression::Lzo, &pack(Compression::Lzo, &noise), noise.len()).unwrap(),
        noise
    );
}

#[test]
fn an_lzo_total_that_is_not_the_extents_is_refused() {
    let mut packed = pack(Compression::Lzo, &[7; 9000]);
    packed[..4].copy_from_slice(&5000_u32.to_le_bytes());
    let error = unpack(Compression::Lzo, &packed, 9000).unwrap_err();
    assert_eq!(error, "lzo total: have 5000, want at most 4096");
    packed.resize(3 * SECTOR, 0);
    let error = unpack(Compression::Lzo, &packed, 9000).unwrap_err();
    assert_eq!(error, "lzo total: have 5000, want the last of 12288 bytes' sectors");
}

#[test]
fn an_inline_lzo_extent_is_one_segment_and_nothing_else() {
    let text = b"inline ".repeat(80);
    let packed = pack_lzo(&text);
    let mut out = vec![0; text.len() + 9];
    decompress(Compression::Lzo, Origin::Inline, &packed, &mut out).unwrap();
    assert_eq!(&out[..text.len()], text);
    assert_eq!(&out[text.len()..], [0; 9]);
    let two = pack_lzo(&b"inline ".repeat(800));
    let refused = decompress(Compression::Lzo, Origin::Inline, &two, &mut out).unwrap_err();
    assert_eq!(refused.field(), "lzo segment length");
}

fn packed(packer: Packer, text: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let mut out = vec![0xAA; 7];
    compress(packer, text, bytes_max, &mut out).then_some(out)
}

/// Every algorithm, at the ends of its levels too.
fn packers() -> impl Iterator<Item = Packer> {
    let named = ["zlib:1", "zlib", "zlib:9", "lzo", "zstd:-15", "zstd:1", "zstd", "zstd:15"];
    named.into_iter().map(|name| name.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_we_pack_comes_back(text in texts(), room in 1..140_000_usize) {
        for packer in packers() {
            let Some(packed) = packed(packer, &text, room) else {
                let whole = packed(packer, &text, 2 * text.len() + 1000).unwrap();
                prop_assert!(whole.len() > room, "{packer}: {} fit {room}", whole.len());
                continue;
            };
            prop_assert!(packed.len() <= room, "{packer}");
            let mut padded = packed.clone();
            padded.resize(packed.len().next_multiple_of(SECTOR), 0);
            let found = unpack(packer.compression(), &padded, text.len()).unwrap();
            prop_assert_eq!(&found, &text, "{}", packer);
            if text.len() <= SECTOR {
                let mut out = vec![0xAA; text.len()];
                decompress(packer.compression(), Origin::Inline, &packed, &mut out).unwrap();
                prop_assert_eq!(&out, &text, "{}", packer);
            }
        }
    }
}

/// An encoder of zlib:1 that was begun again after that once went on with the block it was in.
#[test]
fn an_encoder_that_found_no_room_is_as_good_as_new() {
    let mut state = 1_u64;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    for packer in packers() {
        for _ in 0..200 {
            // Noise, or words that come again after sixteen others; in a room that may do.
            let (bytes, period) =
                (1 + next() % 131_072, if next() % 2 == 0 { 16 } else { 1 << 20 });
            let salt = u32::try_from(next()).unwrap();
            let word = |at: u32| (salt ^ (at % period)).wrapping_mul(2_654_435_761).to_le_bytes();
            let text: Vec<u8> =
                (0..).flat_map(|at| word(at).into_iter().skip(1)).take(bytes).collect();
            let Some(packed) = packed(packer, &text, 1 + next() % (bytes + 100)) else { continue };
            let found = unpack(packer.compression(), &packed, bytes);
            assert!(found.is_ok_and(|found| found == text), "{packer}");
        }
    }
}

#[test]
fn the_largest_extent_is_packed_and_comes_back() {
    let text: Vec<u8> =
        (0..131_072_u32).map(|n| (n.wrapping_mul(n) >> 9).to_le_bytes()[0]).collect();
    for packer in packers() {
        let packed = packed(packer, &text, 140_000).unwrap();
        let mut padded = packed.clone();
        padded.resize(packed.len().next_multiple_of(SECTOR), 0);
        assert_eq!(unpack(packer.compression(), &padded, text.len()).unwrap(), text, "{packer}");
    }
}
