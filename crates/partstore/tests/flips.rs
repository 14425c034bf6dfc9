//! A flipped bit in a part causes an error and never changes a figure.

use latpath_partstore::{
    merge, Column, Directory, Encoding, Group, Kind, Names, PartReader, PartWriter, Span, StoreError,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::{path::Path, sync::Arc};

fn table() -> Arc<[Column]> {
    Arc::new([
        Column::required("stream", Kind::U16, Encoding::Regular).with_statistics(),
        Column::required("t_ns", Kind::I64, Encoding::Noise).with_statistics(),
        Column::optional("host/nic-rx@eth0", Kind::I64, Encoding::Counter),
        Column::required("out_of_order", Kind::Bool, Encoding::Regular),
    ])
}

fn group(rows: i64) -> Group {
    let mut group = Group::new(4);
    for row in 0..rows {
        group.rows += 1;
        group.columns[0].i32.push((row % 3) as i32);
        group.columns[1].i64.push(row * 250_000 + row * row % 977);
        group.columns[2].levels.push(i16::from(row % 5 != 0));
        group.columns[2].i64.extend((row % 5 != 0).then_some(row));
        group.columns[3].bool.push(row % 7 == 0);
    }
    group
}

fn write(names: &Names, span: Span, rows: i64) {
    let notes = [("latpath_format", "1".to_string())];
    let mut part =
        PartWriter::create(&names.directory, (names.hidden(span), names.name(span)), ("rows", &notes), table())
            .unwrap();
    part.write(&group(rows)).unwrap();
    part.write(&group(rows / 2)).unwrap();
    part.publish().unwrap();
}

/// Everything that a reader gets from a part.
fn content(path: &Path) -> Result<String, StoreError> {
    let part = PartReader::open(path)?;
    let mut text = format!("{} rows {:?}", part.rows(), part.columns().collect::<Vec<_>>());
    for index in 0..part.groups() {
        let mut group = Group::default();
        part.read(index, &table(), &mut group)?;
        text += &format!("{:?} {:?} {group:?}", part.bounds(index, "t_ns"), part.bounds(index, "stream"));
    }
    Ok(text)
}

#[test]
fn each_single_bit_that_flips_is_found_or_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let names = Names::new(Directory::open(directory.path()).unwrap());
    write(&names, Span::one(0), 40);
    let path = names.path(Span::one(0));
    let (whole, expected) = (std::fs::read(&path).unwrap(), content(&path).unwrap());
    let mut found = 0;
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, bytes).unwrap();
        match content(&path) {
            Ok(same) => assert_eq!(same, expected, "bit {bit} of {}", whole.len() * 8),
            Err(error) => {
                assert!(error.to_string().contains("damaged"), "bit {bit}: {error}");
                found += 1;
            }
        }
    }
    // Undetected: flips in the file's first 4 bytes, which are not read, and in the checksums' key, which hide the
    // checksums.
    assert!(found > whole.len() * 8 - 200, "{found} of {}", whole.len() * 8);
}

#[test]
fn a_damaged_part_is_not_merged_into_a_whole_one() {
    let directory = tempfile::tempdir().unwrap();
    let names = Names::new(Directory::open(directory.path()).unwrap());
    let spans = [Span::one(0), Span::one(1)];
    // The groups of the first part are so small that their rows are combined into a new group; the first group of the
    // second part is copied.
    write(&names, spans[0], 40);
    write(&names, spans[1], 16_000);
    let both = Span { first: 0, last: 1 };
    let merged = || {
        PartWriter::create(&names.directory, (names.hidden(both), names.name(both)), ("rows", &[]), table()).unwrap()
    };
    for span in spans {
        let whole = std::fs::read(names.path(span)).unwrap();
        let mut bytes = whole.clone();
        bytes[100] ^= 1;
        std::fs::write(names.path(span), bytes).unwrap();
        let error = merge(&names, &spans, merged(), &table(), None, || ()).unwrap_err();
        assert!(error.to_string().contains("its checksum is wrong"), "{error}");
        assert!(!names.path(both).exists() && names.path(span).exists());
        std::fs::write(names.path(span), whole).unwrap();
    }
    merge(&names, &spans, merged(), &table(), None, || ()).unwrap();
    assert!(content(&names.path(both)).unwrap().starts_with("24060 rows"));
}

#[test]
fn a_page_that_claims_gigabytes_is_refused_before_allocation() {
    let directory = tempfile::tempdir().unwrap();
    let names = Names::new(Directory::open(directory.path()).unwrap());
    write(&names, Span::one(0), 40);
    let path = names.path(Span::one(0));
    let file = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let (last, _) = file.metadata().row_groups().last().unwrap().columns().last().unwrap().byte_range();
    let mut bytes = std::fs::read(&path).unwrap();
    // A forged page has no checksums: hide them by changing their key.
    let key = bytes.windows(13).rposition(|w| w == b"latpath_xxh64").unwrap();
    bytes[key] = b'_';
    // The header begins with the page's type, followed by its uncompressed size as a varint.
    let size = last as usize + 3;
    let end = size + bytes[size..].iter().position(|byte| *byte < 0x80).unwrap() + 1;
    assert_eq!((bytes[size - 3], bytes[size - 1], bytes[end]), (0x15, 0x15, 0x15));
    bytes.splice(size..end, [0xfe, 0xff, 0xff, 0xff, 0x0f]);
    std::fs::write(&path, bytes).unwrap();
    let error = content(&path).unwrap_err().to_string();
    assert!(error.contains("a page of more than 16777216 bytes"), "{error}");
}
