/* What Python and kernels.c hand to each other: the names of fields, columns and choices, written once.
 *
 * kernels.c makes structures and enumerations of them; native.py reads this file and makes the same of it. Every field has 64
 * bits: POINTER an address (0: there is none), INTEGER an int64, REAL a float64. VERSION is raised whenever a name or its
 * meaning changes, so that an old library is not called in place of a new one. */

#define CTLD_VERSION 7
#define CTLD_UNIT 4096 /* elements of one tensor that are worked on together and have sums of their own */
#define CTLD_LARGEST_FLOAT32 62  /* gradients have to be below 2 to this: sums of 16 squares are made in float32, */
#define CTLD_LARGEST_FLOAT64 480 /* and of all of them in float64 */
#define CTLD_REACH 8.8 /* widths at which a hill is 3e-17 of its height: beyond, adding it would not change a float64 */

#define CTLD_NOISE(NAME) NAME(NO_NOISE) NAME(GAUSSIAN) NAME(THREE_POINT)

/* Of parameters and gradients; BFLOAT16 has momenta and other buffers in float32. */
#define CTLD_TYPE(NAME) NAME(FLOAT32) NAME(FLOAT64) NAME(BFLOAT16)

#define CTLD_METHOD(NAME) NAME(RESTS) NAME(SWEEPS) NAME(PSGLD) NAME(SANTA_EULER) NAME(SANTA_SYMMETRIC)

/* How the sums of sweeps become those of a group: Reading of sweep.py. */
#define CTLD_READING(NAME) NAME(ONLY) NAME(MEAN) NAME(LAST)

#define CTLD_STATUS(NAME) NAME(DONE) NAME(UNFIT_GRADIENTS) NAME(HAMILTONIAN_NOT_FINITE)

/* A tensor, or what of it lies here. Rows of one account follow each other. */
#define CTLD_ROW(POINTER, INTEGER, REAL)                                                                               \
    POINTER(parameter)                                                                                                 \
    POINTER(gradient)                                                                                                  \
    POINTER(momentum)                                                                                                  \
    POINTER(scale)             /* s */                                                                                 \
    POINTER(previous_gradient) /* noise compensation */                                                                \
    POINTER(gradient_variance)                                                                                         \
    POINTER(square_average) /* V of pSGLD and Santa */                                                                 \
    POINTER(thermostat)     /* ξ of Santa */                                                                           \
    INTEGER(numel)                                                                                                     \
    INTEGER(offset) /* of its first element in the whole parameter */                                                  \
    INTEGER(stream)                                                                                                    \
    INTEGER(account)                                                                                                   \
    INTEGER(first_unit)                                                                                                \
    INTEGER(first_step) /* Santa: whether there was none before */                                                     \
    REAL(memory)        /* noise compensation: weight of this step in the mean */

/* Tensors whose sums are added up by themselves: those of one group, type and weight. */
#define CTLD_ACCOUNT(POINTER, INTEGER, REAL) INTEGER(group) INTEGER(type) REAL(weight)

/* What a group does in this step: a plan of sweep.py. */
#define CTLD_GROUP(POINTER, INTEGER, REAL)                                                                             \
    INTEGER(method)                                                                                                    \
    INTEGER(sweeps)                                                                                                    \
    INTEGER(measure)                                                                                                   \
    INTEGER(scaled)                                                                                                    \
    INTEGER(compensated)                                                                                               \
    INTEGER(reading)                                                                                                   \
    INTEGER(adapt)     /* pSGLD, Santa: whether V moves */                                                             \
    INTEGER(exploring) /* Santa: whether ξ moves */                                                                    \
    REAL(decay)                                                                                                        \
    REAL(sign) /* −1 to ascend */                                                                                      \
    REAL(retain)                                                                                                       \
    REAL(impulse)                                                                                                      \
    REAL(stride)                                                                                                       \
    REAL(deviation)                                                                                                    \
    INTEGER(second_noise) /* which of the two seeds this sweep draws from */                                           \
    REAL(again_retain) /* the second sweep, which has no impulse */                                                    \
    REAL(again_stride)                                                                                                 \
    REAL(again_deviation)                                                                                              \
    INTEGER(again_second_noise)                                                                                        \
    REAL(variance) /* noise compensation: sqrt(variance − share·Var ∇). Santa: of the noise, over g */                 \
    REAL(share)                                                                                                        \
    REAL(smoothing) /* σ */                                                                                            \
    REAL(epsilon)   /* λ */                                                                                            \
    REAL(target)    /* Santa: what u² should be */                                                                     \
    REAL(times)     /* of the reading */                                                                               \
    REAL(over)

/* Of each unit, account and group. */
#define CTLD_SUMS(POINTER, INTEGER, REAL)                                                                              \
    REAL(prior)                                                                                                        \
    REAL(kinetic)                                                                                                      \
    REAL(midpoint)                                                                                                     \
    REAL(clamped)                                                                                                      \
    REAL(refreshed) /* Σp²/s after the second sweep */

/* α's own step: tempering.py. */
#define CTLD_ALPHA(POINTER, INTEGER, REAL)                                                                             \
    REAL(alpha)                                                                                                        \
    REAL(momentum)                                                                                                     \
    REAL(mass)                                                                                                         \
    REAL(step_size)                                                                                                    \
    REAL(friction)                                                                                                     \
    REAL(normal)               /* ε_α */                                                                               \
    REAL(hamiltonian_variance) /* noise compensation; 0: none */                                                       \
    REAL(num_data)                                                                                                     \
    REAL(temperature)                                                                                                  \
    REAL(loss)    /* mean, with the sign of the potential */                                                           \
    REAL(plateau) /* of g */                                                                                           \
    REAL(edge)                                                                                                         \
    REAL(depth)                                                                                                        \
    INTEGER(has_well)                                                                                                  \
    REAL(well_edge)                                                                                                    \
    REAL(well_strength)                                                                                                \
    POINTER(values) /* of the bias at its nodes; 0: there is no bias */                                                \
    POINTER(nodes)                                                                                                     \
    INTEGER(num_bins)                                                                                                  \
    REAL(bias_edge)                                                                                                    \
    REAL(height)                                                                                                       \
    REAL(width)                                                                                                        \
    REAL(hill_scale)  /* 1/(2·width²) */                                                                               \
    REAL(potential)   /* from here on: what is found */                                                                \
    REAL(hamiltonian)                                                                                                  \
    REAL(force)                                                                                                        \
    INTEGER(clamped)

#define CTLD_JOB(POINTER, INTEGER, REAL)                                                                               \
    INTEGER(threads)                                                                                                   \
    INTEGER(noise)                                                                                                     \
    INTEGER(seed)                                                                                                      \
    INTEGER(second_seed)                                                                                               \
    INTEGER(step)                                                                                                      \
    INTEGER(check)                                                                                                     \
    POINTER(alpha)                                                                                                     \
    INTEGER(level)                                                                                                     \
    POINTER(rows)                                                                                                      \
    INTEGER(row_count)                                                                                                 \
    POINTER(accounts)                                                                                                  \
    INTEGER(account_count)                                                                                             \
    POINTER(groups)                                                                                                    \
    INTEGER(group_count)                                                                                               \
    INTEGER(units)                                                                                                     \
    INTEGER(elements)                                                                                                  \
    POINTER(unit_sums)                                                                                                 \
    POINTER(group_sums)
