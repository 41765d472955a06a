//! Inference by a small convolutional network with 8-bit weights, as runtimes for CPUs do it.
//!
//! Two convolutions precede wide dense layers, which have nearly all weights and are read once per image. All
//! numbers are integers, so the answer is exact. An operation is an image.

use std::time::Instant;

use crate::digest::Digest;
use crate::output::{Output, Times};
use crate::rng::{Rng, stream};
use crate::{Failure, Job};

/// Width (equal to the height) and channels of an image.
const IMAGE: (usize, usize) = (64, 3);
/// Output channels of the two convolutions, each of which halves width and height.
const CHANNELS: [usize; 2] = [16, 32];
/// Inputs of the first dense layer.
const FEATURES: usize = (IMAGE.0 / 4) * (IMAGE.0 / 4) * CHANNELS[1];
const CLASSES: usize = 1000;

pub fn run(job: &Job) -> Result<Output, Failure> {
    let network = Network::new(job.bytes(), job.seed)?;
    let mut times = Times::new();
    let mut digest = Digest::default();
    let mut seconds = 0.0;
    for image in 0..job.rounds {
        let pixels = image_of(job.seed, image);
        let began = Instant::now();
        let logits = network.infer(pixels);
        let took = began.elapsed();
        seconds += took.as_secs_f64();
        times.add(took.as_nanos() as u64);
        for (class, logit) in logits.iter().enumerate() {
            digest.add(u64::from(image) << 16 | class as u64, *logit as u64);
        }
    }
    let weights = network.weights();
    let answer = format!(
        "nn-inference weights={weights} images={} digest={digest}",
        job.rounds
    );
    Ok(Output::of_work(answer, f64::from(job.rounds), seconds).with_times(&times))
}

/// A layer's weights, in order of outputs.
struct Layer {
    inputs: usize,
    weights: Vec<i8>,
}

struct Network {
    convolutions: Vec<Layer>,
    dense: Vec<Layer>,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, seed: u64, number: u64) -> Result<Layer, Failure> {
        let mut rng = stream(seed, number);
        let mut weights = crate::filled(inputs * outputs, 0i8)?;
        for part in weights.chunks_mut(8) {
            // The sum of two 16-sided dice less its mean: small weights are common, as in trained networks.
            for (w, byte) in part.iter_mut().zip(rng.next_u64().to_le_bytes()) {
                *w = (byte & 15) as i8 + (byte >> 4) as i8 - 15;
            }
        }
        Ok(Layer { inputs, weights })
    }

    /// Computes all outputs for one input.
    fn apply(&self, input: &[i16]) -> Vec<i32> {
        self.weights
            .chunks_exact(self.inputs)
            .map(|row| dot(row, input))
            .collect()
    }
}

/// Dot product; at most 8192 times 15 times 127, well within 32 bits.
#[inline]
fn dot(weights: &[i8], input: &[i16]) -> i32 {
    weights
        .iter()
        .zip(input)
        .map(|(w, x)| i32::from(*w) * i32::from(*x))
        .sum()
}

/// Sets negative values to 0 and scales the others so that the largest has seven bits.
fn activate(sums: &[i32]) -> Vec<i16> {
    let largest = sums.iter().copied().max().unwrap_or(0).max(1);
    let shift = (32 - largest.leading_zeros()).saturating_sub(7);
    sums.iter().map(|x| ((*x).max(0) >> shift) as i16).collect()
}

impl Network {
    /// A network whose dense layers have about `bytes` in all; the first of them reads the convolutions'
    /// output.
    fn new(bytes: usize, seed: u64) -> Result<Network, Failure> {
        let width = match bytes >> 20 {
            64.. => 4096,
            16.. => 1024,
            _ => 256,
        };
        let hidden = bytes.saturating_sub(FEATURES * width + width * CLASSES) / (width * width);
        let convolutions = [(IMAGE.1, CHANNELS[0]), (CHANNELS[0], CHANNELS[1])]
            .into_iter()
            .enumerate()
            .map(|(i, (from, to))| Layer::new(9 * from, to, seed, i as u64))
            .collect::<Result<_, _>>()?;
        let widths = [(FEATURES, width)]
            .into_iter()
            .chain((0..hidden).map(|_| (width, width)))
            .chain([(width, CLASSES)]);
        let dense = widths
            .enumerate()
            .map(|(i, (from, to))| Layer::new(from, to, seed, 10 + i as u64))
            .collect::<Result<_, _>>()?;
        Ok(Network {
            convolutions,
            dense,
        })
    }

    fn weights(&self) -> usize {
        let layers = self.convolutions.iter().chain(&self.dense);
        layers.map(|l| l.weights.len()).sum()
    }

    /// Computes the logits of an image.
    fn infer(&self, pixels: Vec<i16>) -> Vec<i32> {
        let mut values = pixels;
        let mut side = IMAGE.0;
        for layer in &self.convolutions {
            values = activate(&convolve(layer, &values, side));
            side /= 2;
        }
        let mut logits = Vec::new();
        for layer in &self.dense {
            logits = layer.apply(&values);
            values = activate(&logits);
        }
        logits
    }
}

/// A 3x3 convolution with stride 2 and zero padding. Values are in order of row, column, channel.
fn convolve(layer: &Layer, values: &[i16], side: usize) -> Vec<i32> {
    let channels = layer.inputs / 9;
    let mut patch = vec![0i16; layer.inputs];
    let mut out = Vec::with_capacity(side * side / 4 * (layer.weights.len() / layer.inputs));
    for row in (0..side).step_by(2) {
        for column in (0..side).step_by(2) {
            for (k, to) in patch.chunks_exact_mut(channels).enumerate() {
                let (y, x) = (
                    (row + k / 3).wrapping_sub(1),
                    (column + k % 3).wrapping_sub(1),
                );
                if y < side && x < side {
                    to.copy_from_slice(&values[(y * side + x) * channels..][..channels]);
                } else {
                    to.fill(0);
                }
            }
            out.extend(layer.apply(&patch));
        }
    }
    out
}

/// A smooth image with some noise, as in photographs.
fn image_of(seed: u64, number: u32) -> Vec<i16> {
    let mut rng = stream(!seed, u64::from(number));
    let corners: [[u8; 4]; 3] = std::array::from_fn(|_| (rng.next_u32()).to_le_bytes());
    let (side, last) = (IMAGE.0, IMAGE.0 - 1);
    let mut pixels = Vec::with_capacity(side * side * IMAGE.1);
    for y in 0..side {
        for x in 0..side {
            let noise = rng.next_u32();
            for (c, corner) in corners.iter().enumerate() {
                let weights = [
                    (last - y) * (last - x),
                    (last - y) * x,
                    y * (last - x),
                    y * x,
                ];
                let sum: usize = weights
                    .iter()
                    .zip(corner)
                    .map(|(w, v)| w * usize::from(*v))
                    .sum();
                let value = sum / (last * last) + (noise >> (8 * c) & 15) as usize;
                pixels.push((value.min(255) / 2) as i16);
            }
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A convolution computed by its definition.
    fn oracle(layer: &Layer, values: &[i16], side: usize) -> Vec<i32> {
        let channels = layer.inputs / 9;
        let at = |y: isize, x: isize, c: usize| -> i32 {
            let inside = |v: isize| (0..side as isize).contains(&v);
            if inside(y) && inside(x) {
                i32::from(values[(y as usize * side + x as usize) * channels + c])
            } else {
                0
            }
        };
        let mut out = Vec::new();
        for row in (0..side as isize).step_by(2) {
            for column in (0..side as isize).step_by(2) {
                for filter in layer.weights.chunks_exact(layer.inputs) {
                    let mut sum = 0;
                    for dy in 0..3 {
                        for dx in 0..3 {
                            for c in 0..channels {
                                let w = filter[(dy * 3 + dx) * channels + c];
                                let (y, x) = (row + dy as isize - 1, column + dx as isize - 1);
                                sum += i32::from(w) * at(y, x, c);
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn convolutions_are_those_of_the_definition(
            half in 1usize..6, from in 1usize..4, to in 1usize..5, seed in any::<u64>()
        ) {
            let layer = Layer::new(9 * from, to, seed, 0).unwrap();
            let mut rng = stream(seed, 7);
            let side = 2 * half;
            let values: Vec<i16> = (0..side * side * from).map(|_| (rng.next_u32() & 127) as i16).collect();
            prop_assert_eq!(convolve(&layer, &values, side), oracle(&layer, &values, side));
        }

        #[test]
        fn activations_have_seven_bits(sums in prop::collection::vec(-20_000_000i32..20_000_000, 1..50)) {
            let out = activate(&sums);
            let most = *out.iter().max().unwrap();
            prop_assert!(out.iter().all(|x| (0..128).contains(x)));
            if *sums.iter().max().unwrap() >= 64 {
                prop_assert!(most >= 64);
            }
            for (x, y) in sums.iter().zip(&out) {
                prop_assert!(*x > 0 || *y == 0);
            }
        }
    }

    #[test]
    fn images_are_told_apart_to_the_last_layer() {
        let network = Network::new(32 << 20, 1).unwrap();
        assert!((28 << 20..36 << 20).contains(&network.weights()));
        let first = network.infer(image_of(1, 0));
        assert_eq!(first.len(), CLASSES);
        assert_eq!(network.infer(image_of(1, 0)), first);
        assert_ne!(network.infer(image_of(1, 1)), first);
        assert!(first.iter().any(|x| *x > 0) && first.iter().any(|x| *x < 0));
        let other = Network::new(32 << 20, 2).unwrap();
        assert_ne!(other.infer(image_of(1, 0)), first);
    }
}
