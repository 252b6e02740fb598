//! Replays the corpus of every target, and inputs near it.

use std::{fs, path::Path};

use quorate_fuzz::TARGETS;

/// Largest number of inputs that are derived from one input of the corpus.
const NEIGHBORS_MAX: usize = 64;

#[test]
fn every_target_takes_its_corpus_and_what_is_near_it() {
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "the target {} has no corpus", target.name);
        for file in files {
            let input = fs::read(&file).unwrap();
            // Prints the file, because a panic names only the place in the code.
            println!("{}", file.display());
            (target.run)(&input);
            for neighbor in neighbors(&input) {
                (target.run)(&neighbor);
            }
        }
    }
}

/// Returns inputs near this one: shortened, and with one byte changed, at places spread over the input.
fn neighbors(input: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let step = (input.len() / (NEIGHBORS_MAX / 2)).max(1);
    (0..input.len()).step_by(step).flat_map(move |place| {
        let mut changed = input.to_vec();
        changed[place] ^= 0x80 | place as u8;
        [input[..place].to_vec(), changed]
    })
}
