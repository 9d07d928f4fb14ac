// SPDX-License-Identifier: Apache-2.0
// The maths of one token of the sLSTM and of the LSTM, forward and backward: once for CPU kernels, whose values are
// vectors of units, and GPU kernels, whose values are floats. raw: a gate's input, the recurrent part and the bias.
//
//   sLSTM   lf = logsigmoid(f) or f     m' = max(lf + m, i)     gap = (lf + m) - i
//           F = e^(lf + m - m')   I = e^(i - m')     one of both is 1, and the other e^-|gap|
//           c' = F c + I tanh(z)   n' = F n + I      h = sigmoid(o) c' / n'
//   LSTM    F = sigmoid(f)   I = sigmoid(i)          c' = F c + I tanh(z)   h = sigmoid(o) tanh(c')
//
// Without a past (n = 0) m is -infinity: then F is 0, I is 1 and m' is i, for any i.
//
// Gradients. h does not depend on the stabiliser at a fixed unstabilised state, so m' has a gradient only where the
// states themselves have one. There, with dc, dn and dm from outside, du = dm - (dc c' + dn n') goes to whatever the
// max took m' from: to i, or to lf and so on to the token before. Everything else of m's gradient cancels, and is left
// out rather than added up and subtracted again.
//
// Maths has the type of a value, V, and its functions: exp, divide, sigmoid, tanh; log_sigmoid with its slope;
// gated_ratio, which is sigmoid(gate) c / n. `condition ? a : b` is lane by lane on vectors.
#pragma once

#include "base/host_device.h"
#include "xlstm_hip.h"

namespace xlstm::slstm {

// Of each gate. In backward, gradients.
template <class Maths>
struct Gates {
  typename Maths::V i, f, z, o;
};

template <class Maths>
struct States {
  typename Maths::V c, n, m;
};

// What backward needs of a token. sLSTM: decay is the gap, slope that of logsigmoid; LSTM: decay is F, and I takes the
// place of n.
template <class Maths>
struct Kept {
  typename Maths::V z, o, slope;  // in the dtype of the tensors
  typename Maths::V decay, c, n;  // wide
};

// What backward carries from a token to the one before it.
template <class Maths>
struct Carry {
  typename Maths::V dc, dn, du;
};

template <class Maths>
struct Factors {
  typename Maths::V forget, input;
};

template <class Maths, class V = typename Maths::V>
XLSTM_RULE Factors<Maths> factors(xlstm_cell cell, typename Maths::V decay, typename Maths::V n) {
  if (cell == XLSTM_CELL_LSTM) return {decay, n};
  const V one = Maths::of(1), smaller = Maths::exp(decay > 0 ? -decay : decay);
  return {decay > 0 ? one : smaller, decay > 0 ? smaller : one};
}

// Changes the states, and returns h.
template <class Maths, class V = typename Maths::V>
XLSTM_RULE V forward_token(xlstm_cell cell, const Gates<Maths>& raw, States<Maths>& s, Kept<Maths>& kept) {
  V h;
  kept.z = Maths::tanh(raw.z);
  if (cell == XLSTM_CELL_LSTM) {
    kept.decay = Maths::sigmoid(raw.f);
    kept.slope = Maths::of(0);
    s.n = Maths::sigmoid(raw.i);
    s.c = kept.decay * s.c + s.n * kept.z;
    kept.o = Maths::sigmoid(raw.o);
    h = kept.o * Maths::tanh(s.c);
  } else {
    const bool exp_forget = cell == XLSTM_CELL_SLSTM_EXP_FORGET;
    kept.slope = Maths::of(1);
    const V from_past = (exp_forget ? raw.f : Maths::log_sigmoid(raw.f, kept.slope)) + s.m;
    kept.decay = from_past - raw.i;
    const Factors<Maths> by = factors<Maths>(cell, kept.decay, s.n);
    s.c = by.forget * s.c + by.input * kept.z;
    s.n = by.forget * s.n + by.input;
    s.m = kept.decay > 0 ? from_past : raw.i;
    h = Maths::gated_ratio(raw.o, s.c, s.n, kept.o);
  }
  kept.c = s.c;
  kept.n = s.n;
  return h;
}

// Adds the gradients of a token's states c and n, and of m, to what later tokens have left.
template <class Maths, class V = typename Maths::V>
XLSTM_RULE void add_gradients(Carry<Maths>& carry, V c, V n, V dc, V dn, V dm) {
  carry.dc += dc;
  carry.dn += dn;
  carry.du += dm - (dc * c + dn * n);
}

// The gradients of the gates' inputs; `before` has c and n before the token. dlf: of lf + m.
template <class Maths, class V = typename Maths::V>
XLSTM_RULE Gates<Maths> backward_token(xlstm_cell cell, const Kept<Maths>& kept, const States<Maths>& before, V dh,
                                       Carry<Maths>& carry, V& dlf) {
  const V one = Maths::of(1);
  const Factors<Maths> by = factors<Maths>(cell, kept.decay, kept.n);
  Gates<Maths> d;
  if (cell == XLSTM_CELL_LSTM) {
    const V squashed = Maths::tanh(kept.c);
    carry.dc += dh * kept.o * (one - squashed * squashed);
    d.o = dh * squashed;
    d.i = carry.dc * kept.z * by.input * (one - by.input);
    dlf = carry.dc * before.c * by.forget;
    d.f = dlf * (one - by.forget);
  } else {
    const V mean = Maths::divide(kept.c, kept.n), dsum = Maths::divide(dh * kept.o, kept.n);
    carry.dc += dsum;
    carry.dn -= dsum * mean;
    d.o = dh * mean;
    const V zero = Maths::of(0), to_past = kept.decay > 0 ? carry.du : zero;
    d.i = (carry.dc * kept.z + carry.dn) * by.input + (carry.du - to_past);
    dlf = (carry.dc * before.c + carry.dn * before.n) * by.forget + to_past;
    d.f = dlf * kept.slope;
    carry.dn = carry.dn * by.forget;
    carry.du = to_past;
  }
  d.z = carry.dc * by.input * (one - kept.z * kept.z);
  d.o = d.o * kept.o * (one - kept.o);
  carry.dc = carry.dc * by.forget;
  return d;
}

}  // namespace xlstm::slstm
