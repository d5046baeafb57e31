// SPDX-License-Identifier: Apache-2.0
//! Options of `e1000`.

use clap::Args;

use super::BenchArgs;

/// Options of `e1000`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct E1000Args {
    /// Common options.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Frame sizes in bytes, FCS included
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(64..=1518),
          default_value = "64,1500")]
    pub sizes: Vec<u16>,
    /// Loads offered to a receiving guest, as multiples of its capacity
    #[arg(long, value_delimiter = ',', value_parser = load, default_value = "0.1,0.5,1,2,5,20")]
    pub loads: Vec<Load>,
    /// Cases whose names contain one of these, such as `e1000-csb` or `-rx` [default: all]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Virtual processors of each guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub cpus: u16,
    /// Leave out the changed driver (send combining, CSB), which is built for Linux 6.1
    #[arg(long)]
    pub stock_driver: bool,
}

/// A multiple of a guest's capacity, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load(u32);

impl Load {
    /// The multiple.
    pub fn factor(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// Parses a multiple of a guest's capacity.
fn load(text: &str) -> Result<Load, String> {
    let load: f64 = text.parse().map_err(|_| format!("{text} is not a number"))?;
    if (0.01..=1000.0).contains(&load) {
        Ok(Load((load * 100.0).round() as u32))
    } else {
        Err("it must be from 0.01 to 1000".to_owned())
    }
}
