// The views of the page. To add one, write a module and add it here.
// A module exports show(container, context), and needsSentence: whether it shows the selected sentence. The signal of the
// context is aborted when the view is left: what a module loads must not be shown after that.

import * as attention from "./attention.js";
import * as beam from "./beam.js";
import * as bpe from "./bpe.js";
import * as curves from "./curves.js";
import * as decoding from "./decoding.js";
import * as errors from "./errors.js";
import * as gradients from "./gradients.js";
import * as history from "./history.js";
import * as layers from "./layers.js";
import * as neurons from "./neurons.js";
import * as positions from "./positions.js";
import * as probabilities from "./probabilities.js";
import * as walk from "./walk.js";

/** The views by their id, in the order of their tabs. */
export const VIEWS = {
  attention: { title: "Attention", module: attention },
  neurons: { title: "Neurons", module: neurons },
  walk: { title: "Walk", module: walk },
  probabilities: { title: "Probabilities", module: probabilities },
  beam: { title: "Beam", module: beam },
  decoding: { title: "Decoding", module: decoding },
  layers: { title: "Layers", module: layers },
  positions: { title: "Positions", module: positions },
  gradients: { title: "Gradients", module: gradients },
  history: { title: "Learning", module: history },
  training: { title: "Training", module: curves },
  errors: { title: "Errors", module: errors },
  bpe: { title: "BPE", module: bpe },
};
