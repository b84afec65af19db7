//! Calibrations: what a step costs, and how many KV blocks there are, of a model on a number of cards.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use expediter_types::Blocks;

use crate::step_time::Coefficients;

/// What was measured of a model on a number of cards.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Its name in settings: no white space.
    pub name: String,
    /// What a step costs.
    pub coefficients: Coefficients,
    /// KV blocks of 16 tokens that fit beside the weights, as the engine reports them.
    pub blocks: Blocks,
    /// Bytes of such a block on one card.
    pub block_bytes: u64,
}

/// Calibrations by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileSet {
    calibrations: Vec<Calibration>,
}

impl ProfileSet {
    /// Reads a table: one calibration a line, its fields as in [`ProfileSet::FIELDS`], apart by spaces. Empty lines
    /// and what follows a `#` say nothing.
    ///
    /// # Errors
    /// The first line that is none, with the field that is wrong.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let mut set = Self::default();
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default();
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.is_empty() {
                continue;
            }
            let calibration = parse_line(&fields, number)?;
            if set.get(&calibration.name).is_some() {
                return Err(ProfileError::Twice { line: number, name: calibration.name });
            }
            set.calibrations.push(calibration);
        }
        Ok(set)
    }

    /// The fields of a line. All but the name are numbers, not negative; see [`Coefficients`] and [`Calibration`].
    pub const FIELDS: [&'static str; 11] =
        ["name", "c0", "w1", "g", "g0", "a", "k", "b", "pp", "blocks", "block_bytes"];

    /// The calibrations that ship with the program.
    pub fn shipped() -> &'static Self {
        static SHIPPED: LazyLock<ProfileSet> = LazyLock::new(|| {
            ProfileSet::parse(include_str!("profiles.txt")).expect("a test reads the shipped table")
        });
        &SHIPPED
    }

    /// The calibration of this name.
    pub fn get(&self, name: &str) -> Option<&Calibration> {
        self.calibrations.iter().find(|calibration| calibration.name == name)
    }

    /// All of them, in order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Calibration> {
        self.calibrations.iter()
    }
}

/// What is wrong with a table of calibrations.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// A line that is cut short, or too long.
    #[error("line {line} has {found} fields, not {}: {}", ProfileSet::FIELDS.len(), ProfileSet::FIELDS.join(" "))]
    Fields {
        /// The line, from 1.
        line: u32,
        /// How many there are.
        found: usize,
    },
    /// A field that is no number, or none that can be.
    #[error(
        "line {line}: `{field}` is `{value}`, and must be a number that is not negative{}",
        remedy(field)
    )]
    Number {
        /// The line, from 1.
        line: u32,
        /// The name of the field.
        field: &'static str,
        /// What it says.
        value: String,
    },
    /// A name that an earlier line has.
    #[error("line {line}: `{name}` is there already; give it another name")]
    Twice {
        /// The line, from 1.
        line: u32,
        /// The name.
        name: String,
    },
}

fn remedy(field: &str) -> &'static str {
    match field {
        "blocks" | "block_bytes" => " and has no fraction, and is at least 2",
        _ => "",
    }
}

fn parse_line(fields: &[&str], line: u32) -> Result<Calibration, ProfileError> {
    if fields.len() != ProfileSet::FIELDS.len() {
        return Err(ProfileError::Fields { line, found: fields.len() });
    }
    let wrong = |index: usize| ProfileError::Number {
        line,
        field: ProfileSet::FIELDS[index],
        value: fields[index].to_owned(),
    };
    let number = |index: usize| {
        let value: Option<f64> = fields[index].parse().ok();
        value.filter(|value| value.is_finite() && *value >= 0.0).ok_or_else(|| wrong(index))
    };
    // The null block and one more.
    let whole = |index: usize| {
        let value: Option<u64> = fields[index].parse().ok();
        value.filter(|value| *value >= 2).ok_or_else(|| wrong(index))
    };
    let coefficients = Coefficients {
        c0: number(1)?,
        w1: number(2)?,
        g: number(3)?,
        g0: number(4)?,
        a: number(5)?,
        k: number(6)?,
        b: number(7)?,
        pp: number(8)?,
    };
    let (name, blocks, block_bytes) = (fields[0].to_owned(), Blocks(whole(9)?), whole(10)?);
    Ok(Calibration { name, coefficients, blocks, block_bytes })
}

/// A calibration that ships with the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Llama-3-8B on one A100-80GB; fitted to measured kernels (mean error 3.4 %).
    #[default]
    Llama3_8bTp1A100,
    /// Llama-3-70B on two A100-80GB; fitted to measured kernels (mean error 3.1 %).
    Llama3_70bTp2A100,
    /// Llama-3-70B on four A100-80GB; fitted to measured kernels (mean error 2.9 %).
    Llama3_70bTp4A100,
    /// Qwen3-32B on two H100-80GB; set by hand to two published points.
    Qwen3_32bTp2H100,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 4] =
        [Self::Llama3_8bTp1A100, Self::Llama3_70bTp2A100, Self::Llama3_70bTp4A100, Self::Qwen3_32bTp2H100];

    /// The name as settings spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama3_8bTp1A100 => "llama3_8b_tp1_a100_80g",
            Self::Llama3_70bTp2A100 => "llama3_70b_tp2_a100_80g",
            Self::Llama3_70bTp4A100 => "llama3_70b_tp4_a100_80g",
            Self::Qwen3_32bTp2H100 => "qwen3_32b_tp2_h100",
        }
    }

    /// What was measured; the table says where.
    pub fn calibration(self) -> &'static Calibration {
        ProfileSet::shipped().get(self.name()).expect("a test looks up each")
    }

    /// What a step costs.
    pub fn coefficients(self) -> Coefficients {
        self.calibration().coefficients
    }

    /// KV blocks of 16 tokens that fit beside the weights at `gpu_memory_utilization` 0.9.
    pub fn blocks(self) -> Blocks {
        self.calibration().blocks
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of no profile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no profile; there are {names}", names = Profile::ALL.map(Profile::name).join(", "))]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_as_it_is_written() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        let error = "gpt".parse::<Profile>().unwrap_err();
        assert!(error.to_string().contains("llama3_8b_tp1_a100_80g"), "{error}");
    }

    #[test]
    fn every_profile_is_in_the_shipped_table_and_no_other() {
        let names: Vec<&str> = ProfileSet::shipped().iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, Profile::ALL.map(Profile::name));
        assert_eq!(Profile::default().blocks(), Blocks(27_853), "from a start-up log of vLLM");
        assert!((Profile::Llama3_70bTp2A100.coefficients().g - 0.336_915).abs() < 1e-9);
    }

    #[test]
    fn a_wrong_table_says_which_line_and_field() {
        let cases = [
            (
                "# nothing\n\nm 1 2 3",
                "line 3 has 4 fields, not 11: name c0 w1 g g0 a k b pp blocks block_bytes",
            ),
            ("m 1 2 3 4 x 6 7 8 9 10", "line 1: `a` is `x`, and must be a number that is not negative"),
            ("m 1 2 3 4 5 6 -7 8 9 10", "line 1: `b` is `-7`, and must be a number that is not negative"),
            ("m 1 2 3 4 5 6 inf 8 9 10", "line 1: `b` is `inf`, and must be a number that is not negative"),
            (
                "m 1 2 3 4 5 6 7 8 9.5 10",
                "line 1: `blocks` is `9.5`, and must be a number that is not negative and has no fraction, and is at least 2",
            ),
            (
                "m 1 2 3 4 5 6 7 8 9 10\nm 1 2 3 4 5 6 7 8 9 10",
                "line 2: `m` is there already; give it another name",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(ProfileSet::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
        let set = ProfileSet::parse("m 1 2 3 4 5 6 7 8 9 10 # mine").unwrap();
        assert_eq!(set.get("m").map(|one| (one.blocks, one.block_bytes)), Some((Blocks(9), 10)));
    }
}
