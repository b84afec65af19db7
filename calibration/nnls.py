"""Least squares with no negative coefficient, for a handful of columns."""


def nnls(matrix, wanted):
    """`x >= 0` that minimises `|matrix x - wanted|`, and that square sum.

    Coordinate descent on the normal equations: each coordinate in turn takes its best value given the others, or 0.
    It converges because the problem is convex (Franc, Hlaváč, Navara, "Sequential coordinate-wise algorithm for the
    non-negative least squares problem", CAIP 2005). Columns are scaled to equal length first."""
    columns = list(zip(*matrix))
    scales = [sum(value * value for value in column) ** 0.5 or 1.0 for column in columns]
    columns = [[value / scale for value in column] for column, scale in zip(columns, scales)]
    gram = [[sum(a * b for a, b in zip(left, right)) for right in columns] for left in columns]
    target = [sum(a * b for a, b in zip(column, wanted)) for column in columns]
    solution = [0.0] * len(columns)
    for _ in range(ROUNDS):
        largest = 0.0
        for index, row in enumerate(gram):
            if row[index] == 0.0:
                continue
            rest = sum(value * x for value, x in zip(row, solution)) - row[index] * solution[index]
            new = max(0.0, (target[index] - rest) / row[index])
            largest = max(largest, abs(new - solution[index]))
            solution[index] = new
        if largest < 1e-12:
            break
    residual = sum(
        (sum(column[row] * x for column, x in zip(columns, solution)) - value) ** 2 for row, value in enumerate(wanted)
    )
    return [x / scale for x, scale in zip(solution, scales)], residual


ROUNDS = 200_000
