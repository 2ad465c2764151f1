"""An ensemble from one training run as an estimator of scikit-learn's, which says where it is not sure.

python examples/integrations/sklearn_digits.py
"""

from digits import split
from sklearn.metrics import log_loss

from ctld.integrations.sklearn import CTLDClassifier

if __name__ == "__main__":
    train, test, train_labels, test_labels = (part.numpy() for part in split())
    model = CTLDClassifier(hidden_layer_sizes=(64,), epochs=40, random_state=0).fit(train, train_labels)
    print(f"accuracy {model.score(test, test_labels):.3f}")
    print(f"nll {log_loss(test_labels, model.predict_proba(test)):.3f} of {len(model.members_)} members together")
    total, _ = model.predict_uncertainty(test)
    wrong = model.predict(test) != test_labels
    print(f"entropy where it is right {total[~wrong].mean():.3f}, where it is wrong {total[wrong].mean():.3f} nats")
