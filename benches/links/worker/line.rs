//! Measures the link between two processes over plain TCP.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Round trips.
const ROUNDS: usize = 15;
/// Bytes of one bulk message; the fastest of several counts, since TCP starts slowly.
const BULK: usize = 8 << 20;
const BULKS: usize = 8;

/// Measured properties of a link.
#[derive(Clone, Copy)]
pub struct Line {
    /// One-way latency of a short message in seconds: half of the shortest round trip.
    pub one_way: f64,
    pub bytes_per_second: f64,
}

/// Rank 1 measures and rank 0 answers; both return the same result.
pub fn measure(rank: usize, address: (&str, u16)) -> anyhow::Result<Line> {
    let mut stream = if rank == 0 {
        TcpListener::bind(address)?.accept()?.0
    } else {
        connect(address)?
    };
    stream.set_nodelay(true)?;
    let (mut byte, mut bulk) = ([0; 1], vec![0; BULK]);
    if rank == 0 {
        for _ in 0..ROUNDS {
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
        for _ in 0..BULKS {
            stream.read_exact(&mut bulk)?;
            stream.write_all(&byte)?;
        }
        let mut said = [0; 16];
        stream.read_exact(&mut said)?;
        let (one_way, rest) = said.split_at(8);
        let number = |bytes: &[u8]| Ok::<_, anyhow::Error>(f64::from_le_bytes(bytes.try_into()?));
        return Ok(Line {
            one_way: number(one_way)?,
            bytes_per_second: number(rest)?,
        });
    }
    let mut timed = |bytes: &[u8]| -> anyhow::Result<f64> {
        let begin = Instant::now();
        stream.write_all(bytes)?;
        stream.read_exact(&mut byte)?;
        Ok(begin.elapsed().as_secs_f64())
    };
    let mut least = |bytes: &[u8], times: usize| -> anyhow::Result<f64> {
        let all = (0..times).map(|_| timed(bytes));
        let all = all.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(all.into_iter().fold(f64::INFINITY, f64::min))
    };
    let there_and_back = least(&[1], ROUNDS)?;
    let bulk = least(&bulk, BULKS)? - there_and_back;
    let line = Line {
        one_way: there_and_back / 2.0,
        bytes_per_second: BULK as f64 / bulk.max(1e-6),
    };
    let said = [line.one_way, line.bytes_per_second].map(f64::to_le_bytes);
    stream.write_all(&said.concat())?;
    Ok(line)
}

fn connect(address: (&str, u16)) -> anyhow::Result<TcpStream> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if begin.elapsed() > Duration::from_secs(20) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
