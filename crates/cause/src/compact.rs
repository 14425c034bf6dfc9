//! Many short pieces told as few: what alternates is summed.

use crate::{Cause, Piece};

/// More pieces than this are put together.
const MANY: usize = 256;
/// As many that belong to one actor are told one by one.
const FEW: usize = 24;

/// Puts together what alternates, if it is too much to tell: each actor's uninterrupted stretch becomes one piece for each
/// cause and culprit, in the order in which they came first. All sums stay what they were.
pub(crate) fn compact(pieces: Vec<Piece>) -> Vec<Piece> {
    if pieces.len() <= MANY {
        return pieces;
    }
    let mut told: Vec<Piece> = Vec::new();
    for stretch in pieces.chunk_by(|a, b| a.actor == b.actor && a.machine == b.machine) {
        if stretch.len() <= FEW {
            told.extend_from_slice(stretch);
            continue;
        }
        let mut sums: Vec<(Piece, i64, usize)> = Vec::new();
        for piece in stretch {
            let took = piece.to - piece.from;
            // An exit's number is its reason.
            let reason = |p: &Piece| p.number.filter(|_| p.cause == Cause::VmExit);
            let same = |p: &Piece| {
                p.cause == piece.cause && p.by == piece.by && p.cpu == piece.cpu && reason(p) == reason(piece)
            };
            match sums.iter_mut().find(|(p, ..)| same(p)) {
                Some((_, sum, times)) => (*sum, *times) = (*sum + took, *times + 1),
                None => sums.push((piece.clone(), took, 1)),
            }
        }
        let mut cursor = stretch[0].from;
        for (mut piece, sum, times) in sums {
            (piece.from, piece.to) = (cursor, cursor + sum);
            cursor = piece.to;
            if times > 1 {
                let sum = format!("{times} times, put together");
                piece.note = Some(piece.note.map_or(sum.clone(), |note| format!("{note}; {sum}")));
            }
            told.push(piece);
        }
    }
    told
}
