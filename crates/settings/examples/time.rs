//! Measures how long it takes to read this host's settings: prints one line for each of ten readings.

fn main() {
    for _ in 0..10 {
        let reading = latpath_settings::read_host(&[]);
        println!("{} values in {:.1} ms; {:?}", reading.values.len(), reading.took_ns as f64 / 1e6, reading.notes);
    }
}
