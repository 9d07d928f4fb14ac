// SPDX-License-Identifier: Apache-2.0
// The truth is double throughout. Beside it goes a model that rounds to bfloat16 what the kernels round: the state
// where it is read, the weighted y that is added to it. Bounds:
//   truth   each term of a sum passes through at most two roundings of operands, of 2^-9 each on average and 2^-8 at
//           most, and the sum through one more, also where it is of one term alone: |error| <= 2^-8 (terms' sizes
//           summed) + 2^-8 |result|
//   model   the result's rounding, which may fall to the other side: 2^-8 |result|; an operand or two that double and
//           float round apart, 2^-8 of a term each: 2^-7 (largest term); float sums: 2^-17 (terms' sizes summed)
// States and dots leave in float: 2^-17 of their terms from the model.
#include "walk_problem.h"

namespace xlstm::gpu::mlstm {
namespace {

constexpr double kEps = 1e-3, kScale = 0x1p-4;

double rounded(double x) { return to_float(from_float<BFloat16>(float(x))); }

// A sum beside what bounds its error.
struct Sum {
  double exact = 0, model = 0, sizes = 0, largest = 0, slack = 0;

  void add(double term, double modelled) {
    exact += term;
    model += modelled;
    const double size = std::fmax(std::fabs(term), std::fabs(modelled));
    sizes += size;
    largest = std::fmax(largest, size);
  }
  void scale(double by) { exact *= by, model *= by, sizes *= std::fabs(by), largest *= std::fabs(by); }
};

// The worst error, in bounds.
struct Worst {
  double value = 0;
  std::string where;

  void see(double error, double bound, const std::string& at) {
    const double size = std::isnan(error) ? INFINITY : error == 0 ? 0 : error / bound;
    if (size > value) value = size, where = at;
  }
  void see(double got, const Sum& want, const std::string& at) {
    see(std::fabs(got - want.exact), 0x1p-8 * want.sizes + 0x1p-8 * std::fabs(want.exact) + want.slack, at + ", truth");
    see(std::fabs(got - want.model),
        0x1p-8 * std::fabs(want.model) + 0x1p-7 * want.largest + 0x1p-17 * want.sizes + want.slack, at + ", model");
  }
};

std::string position_text(const char* name, int head, int i, int j) {
  return std::string(name) + " of head " + std::to_string(head) + " at " + std::to_string(i) + ", " + std::to_string(j);
}

}  // namespace

WalkProblem::WalkProblem(const WalkCase& of, unsigned seed)
    : case_(of),
      shape_(hopper_shape(of.rows, of.y_columns)),
      slots_((of.length + kChunk - 1) / kChunk),
      tiles_((of.y_columns + shape_.y_tile() - 1) / shape_.y_tile() + (shape_.pair ? 1 : 0)),
      padded_(int64_t(kHeads) * slots_ * kChunk),
      a_(kHeads, of.length, of.x_columns),
      x_(kHeads, of.length, of.x_columns),
      y_(kHeads, of.length, of.y_columns),
      out_(kHeads, of.length, of.y_columns),
      with_(kHeads, of.length, of.y_columns),
      scores_(padded_ * kChunk),
      factors_(padded_ * kFactors),
      decay_(kHeads * slots_),
      vector_(int64_t(kHeads) * slots_ * of.y_columns),
      dots_(0),
      state_in_(int64_t(kHeads) * of.x_columns * of.y_columns),
      state_out_(state_in_.size()),
      dc_last_(state_in_.size()),
      state_dots_(0),
      measures_(int64_t(kHeads) * slots_ * kGateTermFloats),
      n_in_(int64_t(kHeads) * of.x_columns),
      n_last_(n_in_.size()),
      l_(int64_t(kHeads) * of.length) {
  if (shape_.pair) tiles_ = tiles_ / 2 * 2;
  dots_ = DeviceArray<float>(tiles_ * padded_);
  state_dots_ = DeviceArray<float>(tiles_ * kHeads);
  plan_.schedule = Schedule::hopper;
  plan_.rows = of.rows;
  plan_.slices = 1;
  plan_.chunk = kChunk;
  plan_.y_tile = shape_.y_tile();
  plan_.tiles = tiles_;
  plan_.makes_scores = of.kind == Kind::scored;
  plan_.segments = of.segments;
  plan_.segment_chunks = (slots_ + of.segments - 1) / of.segments;
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponent(-3, 3);
  const auto next = [&] { return normal(engine); };
  for (TokenArray* tokens : {&a_, &x_, &y_, &with_}) tokens->fill(next);
  for (DeviceArray<float>* values : {&vector_, &state_in_, &dc_last_, &n_in_})
    for (int64_t i = 0; i < values->size(); ++i) (*values)[i] = float(next());
  // What belongs to no token: scores and factors are zeros there, gains are never looked at.
  std::fill_n(scores_.data(), scores_.size(), uint16_t(0));
  for (int slot = 0; slot < kHeads * slots_; ++slot) {
    decay_[slot] = of.decays[slot % slots_ % of.decays.size()];
    for (int t = 0; t < kChunk; ++t) {
      const bool inside = slot % slots_ * kChunk + t < of.length;
      factor(slot, kInter, t) = inside ? float(std::exp(exponent(engine))) : 0;
      factor(slot, kInto, t) = inside ? float(std::exp(exponent(engine))) : 0;
      factor(slot, kDiagonal, t) = inside ? float(next()) : 0;
      if (of.kind != Kind::flowing)
        factor(slot, kInverseN, t) = !inside ? NAN : float((engine() % 2 ? 1 : -1) * std::exp(2 * exponent(engine)));
      else
        factor(slot, kInterDl, t) = inside ? float(next()) : 0;
      if (of.kind == Kind::scored) {
        measure(slot, kRowHigh, t) = float(next());
        measure(slot, kColumnHigh, t) = inside ? float(next()) : -INFINITY;
        for (HopperGateTerm low : {kRowLow, kColumnLow}) measure(slot, low, t) = inside ? float(1e-3 * next()) : 0;
        measure(slot, kMinN, t) = float(std::exp(next()));
        BFloat16* const weights = reinterpret_cast<BFloat16*>(&measure(slot, kGateTerms, 0));
        const float into = factor(slot, kInto, t);
        weights[t] = from_float<BFloat16>(into);
        weights[kChunk + (t ^ 8)] = from_float<BFloat16>(into - to_float(weights[t]));
        factor(slot, kInverseN, t) = NAN;  // nobody made one
        continue;
      }
      for (int s = 0; s <= t && inside; ++s)
        scores_[(int64_t(slot) * kChunk + t) * kChunk + s] = from_float<BFloat16>(float(next())).bits;
    }
  }
}

double WalkProblem::score(int head, int64_t slot, int t, int s) {
  if (case_.kind != Kind::scored)
    return to_float(BFloat16{scores_[(slot * kChunk + (case_.reverse ? s : t)) * kChunk + (case_.reverse ? t : s)]});
  if (s > t) return 0;
  const int first = int(slot % slots_) * kChunk;
  double product = 0;
  for (int i = 0; i < case_.x_columns; ++i) product += a_.at(head, first + t, i) * x_.at(head, first + s, i);
  const double exponent = double(measure(slot, kRowHigh, t)) + measure(slot, kColumnHigh, s) +
                          double(measure(slot, kRowLow, t)) + measure(slot, kColumnLow, s);
  return kScale * product * std::exp2(exponent);
}

void WalkProblem::run() {
  WalkParams p{};
  p.where = {nullptr, case_.length, kHeads, 1, kHeads, slots_, kChunk, nullptr};
  p.a = a_.tokens(), p.x = x_.tokens(), p.y = y_.tokens(), p.out = out_.tokens();
  p.scores = case_.kind == Kind::scored ? nullptr : scores_.data();
  p.factors = factors_.data();
  p.decay = decay_.data();
  if (case_.kind == Kind::flowing) {
    p.vector = vector_.data();
    p.dot_with = with_.tokens();
    p.dots = dots_.data();
  }
  p.state_in = case_.state_in ? state_in_.data() : nullptr;
  p.state_out = state_out_.data();
  p.state_x = case_.y_columns;
  p.state_y = 1;
  const int64_t state_floats = int64_t(plan_.rows) * plan_.y_tile * tiles_;
  DeviceArray<float> state_before_last(kHeads * state_floats), segment_states(segment_state_floats(plan_, kHeads));
  p.state_before_last = state_before_last.data();
  p.segment_states = segment_states.data();
  p.segments = plan_.segments;
  p.segment_chunks = plan_.segment_chunks;
  p.tiles = tiles_;
  p.slices = plan_.slices;
  DeviceArray<float> segment_n(int64_t(kHeads) * (plan_.segments - 1) * plan_.rows);
  const ScoringParams scoring{measures_.data(), case_.state_in ? n_in_.data() : nullptr,
                              n_last_.data(),   l_.data(),
                              segment_n.data(), float(kScale),
                              float(kEps),      true};
  const auto launch = [&](auto output) {
    using Output = decltype(output);
    if (Output::kTerms.reverse != case_.reverse)
      throw std::invalid_argument("a walk in a direction that no output has");
    launch_walk_hopper<Output>(plan_, p, case_.kind == Kind::scored ? &scoring : nullptr, dc_last_.data(),
                               state_dots_.data(), nullptr);
  };
  switch (case_.kind) {
    case Kind::plain:
      return launch(output::dv{});
    case Kind::gained:
    case Kind::scored:
      return launch(output::h{});
    case Kind::flowing:
      return case_.reverse ? launch(output::dk{}) : launch(output::dq{});
  }
}

std::string WalkProblem::compare() {
  const int rows = case_.x_columns, columns = case_.y_columns;
  const Factor inter = case_.reverse ? kInto : kInter, weight = case_.reverse ? kInter : kInto;
  const Factor along = case_.reverse ? kInto : kInterDl;
  const bool flowing = case_.kind == Kind::flowing, scored = case_.kind == Kind::scored;
  Worst worst;
  for (int head = 0; head < kHeads; ++head) {
    // The state, and as the kernel holds it: rounded where it is read or added to, its decay apart until it is small.
    std::vector<double> state(rows * columns), undecayed_state(rows * columns), sizes(rows * columns);
    double pending_decay = 1;
    std::vector<Sum> n_of(rows);
    for (int i = 0; i < rows && case_.state_in; ++i) n_of[i].add(n_in_[head * rows + i], n_in_[head * rows + i]);
    if (case_.state_in)
      for (size_t i = 0; i < state.size(); ++i)
        sizes[i] = std::fabs(state[i] = undecayed_state[i] = state_in_[head * int64_t(state.size()) + i]);
    for (int n = 0; n < slots_; ++n) {
      const int chunk = case_.reverse ? slots_ - 1 - n : n, valid = std::min(kChunk, case_.length - chunk * kChunk);
      const int64_t slot = head * slots_ + chunk;
      if (n > 0 && (case_.reverse ? chunk + 1 : chunk) % plan_.segment_chunks == 0) {  // a segment begins
        for (double& value : undecayed_state) value = float(value * pending_decay);
        pending_decay = 1;
      }
      if (n == slots_ - 1) {
        Sum dot;
        for (size_t i = 0; i < state.size(); ++i) {
          const double with = dc_last_[head * int64_t(state.size()) + i];
          dot.add(with * state[i], with * undecayed_state[i] * pending_decay);
        }
        double got = 0;
        for (int tile = 0; tile < tiles_; ++tile) got += state_dots_[tile * kHeads + head];
        worst.see(got, dot, position_text("the dot of states", head, 0, 0));
      }
      for (int t = 0; t < valid; ++t) {
        const int token = chunk * kChunk + t;
        std::vector<Sum> row(columns);
        for (int i = 0; i < rows; ++i) {
          const double by = a_.at(head, token, i) * factor(slot, inter, t);
          for (int j = 0; j < columns; ++j)
            row[j].add(by * state[i * columns + j], by * pending_decay * rounded(undecayed_state[i * columns + j]));
        }
        Sum l;
        for (int s = 0; s < valid; ++s)
          if (const double by = score(head, slot, t, s); by != 0) {
            l.add(by, by);
            for (int j = 0; j < columns; ++j)
              row[j].add(by * y_.at(head, chunk * kChunk + s, j), rounded(by) * y_.at(head, chunk * kChunk + s, j));
          }
        double gain = case_.kind == Kind::gained ? factor(slot, kInverseN, t) : 1, unsure = 0;
        if (scored) {
          for (int i = 0; i < rows; ++i) {
            const double by = factor(slot, inter, t) * a_.at(head, token, i);
            l.add(by * n_of[i].exact, by * n_of[i].exact);
            l.sizes += std::fabs(by) * (n_of[i].sizes - std::fabs(n_of[i].exact));
          }
          const double n = std::fmax(std::fabs(l.exact), double(measure(slot, kMinN, t))) + kEps;
          gain = 1 / n;
          unsure = 0x1p-15 * l.sizes;  // n and its weights have 16 bits each
          worst.see(std::fabs(l_[int64_t(head) * case_.length + token] - l.exact), unsure,
                    position_text("l", head, token, 0));
          unsure /= n;
        }
        for (int tile = 0; tile * plan_.y_tile < columns && flowing; ++tile) {
          Sum dot;
          for (int j = tile * plan_.y_tile; j < std::min(columns, (tile + 1) * plan_.y_tile); ++j) {
            const double flow = double(factor(slot, along, t)) * vector_[slot * columns + j],
                         with = with_.at(head, token, j);
            row[j].add(flow, flow);
            dot.add(row[j].exact * with, row[j].model * with);
            dot.sizes += 0x1p8 * (row[j].largest * 0x1p-7 + row[j].sizes * 0x1p-8) * std::fabs(with);
            row[j].add(factor(slot, kDiagonal, t) * y_.at(head, token, j),
                       factor(slot, kDiagonal, t) * y_.at(head, token, j));
          }
          worst.see(dots_[tile * padded_ + slot * kChunk + t], dot, position_text("dots", head, token, tile));
        }
        for (int j = 0; j < columns; ++j) {
          row[j].scale(gain);
          row[j].slack = unsure * std::fabs(row[j].model);
          worst.see(out_.at(head, token, j), row[j], position_text("the output", head, token, j));
        }
      }
      pending_decay = float(pending_decay * decay_[slot]);
      if (!(pending_decay >= 0x1p-40)) {
        for (double& value : undecayed_state) value = float(value * pending_decay);
        pending_decay = 1;
      }
      const float up = 1 / float(pending_decay);
      for (double& value : state) value *= decay_[slot];
      for (double& value : sizes) value *= decay_[slot];
      for (int t = 0; t < valid; ++t)
        for (int j = 0; j < columns; ++j) {
          const double y = y_.at(head, chunk * kChunk + t, j), by = factor(slot, weight, t);
          const double weighed = rounded(float(y) * (float(by) * up));
          for (int i = 0; i < rows; ++i) {
            const double x = x_.at(head, chunk * kChunk + t, i);
            state[i * columns + j] += by * x * y;
            undecayed_state[i * columns + j] += x * weighed;
            sizes[i * columns + j] += std::fabs(by * x * y);
          }
        }
      for (int i = 0; i < rows; ++i) {
        n_of[i].scale(decay_[slot]);
        for (int t = 0; t < valid; ++t) {
          const double added = double(factor(slot, weight, t)) * x_.at(head, chunk * kChunk + t, i);
          n_of[i].add(added, added);
        }
      }
    }
    for (int i = 0; i < rows && scored; ++i)
      worst.see(std::fabs(n_last_[head * rows + i] - n_of[i].exact), 0x1p-16 * n_of[i].sizes,
                position_text("the last n", head, i, 0));
    for (size_t i = 0; i < state.size(); ++i) {
      const double got = state_out_[head * int64_t(state.size()) + i];
      const std::string at = position_text("the last state", head, int(i) / columns, int(i) % columns);
      worst.see(std::fabs(got - state[i]), 0x1p-8 * sizes[i], at + ", truth");
      worst.see(std::fabs(got - undecayed_state[i] * pending_decay), 0x1p-14 * sizes[i], at + ", model");
    }
  }
  char text[200];
  std::snprintf(text, sizeof text, "%.2f of the bound: %s", worst.value, worst.where.c_str());
  return worst.value <= 1 ? "" : text;
}

}  // namespace xlstm::gpu::mlstm
